"""`make demo`: train a YOLO model in two stages on generated data, with two injected faults: a kill and a memory leak."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from shapes import make_shapes

from holdfast.simulator import injection

HERE = Path(__file__).resolve().parent
FAULTS = {"kill": {"at": 50}, "leak": {"mb": 2.0, "limit_mb": 1250}}
INTRODUCTION = """\
A YOLO11n learns squares and circles from scratch, in two stages (demo.toml). The demo injects two faults:
- the process is killed with SIGKILL at batch 50,
- every batch leaks 2 MB, and a process that exceeds 1.25 GB is killed, as on a machine that runs out of memory.

$ holdfast run demo.toml
"""


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    make_shapes(folder)
    shutil.copy(HERE / "demo.toml", folder)
    holdfast = Path(sys.executable).with_name("holdfast")
    print(INTRODUCTION, flush=True)
    environment = {**os.environ, **injection.environment(folder / "faults", **FAULTS), "YOLO_VERBOSE": "False"}
    code = subprocess.run([holdfast, "run", "demo.toml"], cwd=folder, env=environment, check=False).returncode
    print(f"\nOpen the report: {folder / '.holdfast/runs/shapes-1/report.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
