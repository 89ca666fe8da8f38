"""`holdfast check` on trainings that are known to be sound, or known to be faulty: what a dry run of each says.

.venv/bin/python bench/check/run.py                    all healthy programs of bench/detection: none may be warned of
.venv/bin/python bench/check/run.py --only 'gan|yolo'
.venv/bin/python bench/check/run.py --faulty           the faulty ones: how many a dry run alone stops or warns of
.venv/bin/python bench/check/run.py --check            exit status 1 where a healthy program is warned of
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = ROOT / ".venv/bin/python"
HOLDFAST = ROOT / ".venv/bin/holdfast"
LIMIT_S = 240
KINDS = ("device-operators", "device-canaries", "learning")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a regular expression of program names")
    parser.add_argument("--faulty", action="store_true", help="the faulty programs in place of the healthy ones")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="exit 1 where a healthy program is warned of")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "bench/detection"))
    cases = _module(ROOT / "bench/detection/cases.py")
    programs = [case for case in (cases.FAULTY if asked.faulty else cases.HEALTHY) if re.search(asked.only, case.name)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = list(pool.map(_told, programs))
    spoken = [result for result in results if result["spoke"]]
    experimented = sum(1 for result in results if "learning-one-batch" in result["passed"])
    print(
        f"\n{len(results)} programs, {len(spoken)} warned of or stopped; one batch was learned by heart in {experimented}"
    )
    sys.exit(1 if asked.check and not asked.faulty and spoken else 0)


def _told(case: Any) -> dict[str, Any]:
    result = dry_run_result(case.path)
    spoke = "; ".join(f"{check}: {status}: {message}" for check, status, message in result["spoke"])
    unchecked = ", ".join(f"{check} ({why})" for check, why in result["unchecked"].items())
    line = f"{case.name:34} {result['seconds']:5.1f} s  {len(result['passed'])} passed  {spoke}"
    print(line + (f"  not checked: {unchecked}" if unchecked else ""), flush=True)
    return result


def dry_run_result(program: Path) -> dict[str, Any]:
    """What `holdfast check` says of it, in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-check-") as folder:
        began = time.monotonic()
        only = [word for kind in KINDS for word in ("--only", kind)]
        done = subprocess.run(
            [str(HOLDFAST), "check", "--json", *only, "--", str(PYTHON), str(program)],
            cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        left = sorted(path.name for path in Path(folder).iterdir())
    told = json.loads(done.stdout)["checks"] if done.stdout.startswith("{") else []
    spoke = [
        (check["id"], check["status"], check["findings"][0]["message"])
        for check in told
        if check["status"] in ("warn", "fatal")
    ]
    if not told:
        spoke.append(("holdfast check", "failed", done.stderr[-300:]))
    if left:
        spoke.append(("holdfast check", "left files behind", ", ".join(left)))
    return {
        "seconds": seconds,
        "passed": [check["id"] for check in told if check["status"] == "passed"],
        "spoke": spoke,
        "unchecked": {check["id"]: check["message"] for check in told if check["status"] == "not checked"},
    }


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
