"""`make demo`: a real training on data that it makes, killed once on purpose, and what Holdfast makes of that."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    holdfast = Path(sys.executable).with_name("holdfast")
    command = [
        str(holdfast), "run",
        "--dir", str(folder / "run"),
        "--checkpoint", "shapes.pt",
        "--resume-with", "--resume {checkpoint}",
        "--", sys.executable, str(HERE / "train_shapes.py"), "--die-at-step", "333",
    ]  # fmt: skip
    print("A small network learns shapes. At step 333 its process is killed with SIGKILL, on purpose.\n", flush=True)
    print(
        "$ holdfast run --checkpoint shapes.pt --resume-with '--resume {checkpoint}' -- python train_shapes.py\n",
        flush=True,
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    print(f"\nLook at it: {holdfast} status {folder / 'run'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
