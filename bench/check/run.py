"""`holdfast check` on trainings that are known to be healthy or faulty: the findings of a dry run of each.

.venv/bin/python bench/check/run.py                    all healthy programs of bench/detection: none may get a warning
.venv/bin/python bench/check/run.py --only 'gan|yolo'
.venv/bin/python bench/check/run.py --faulty           the faulty programs: the number that a dry run alone stops or warns about
.venv/bin/python bench/check/run.py --check            exit status 1 if a healthy program gets a warning
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
    parser.add_argument("--only", default="", help="only programs whose name matches this regular expression")
    parser.add_argument("--faulty", action="store_true", help="run the faulty programs instead of the healthy ones")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a healthy program gets a warning")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "bench/detection"))
    cases = _import_module(ROOT / "bench/detection/cases.py")
    programs = [
        case for case in (cases.FAULTY if options.faulty else cases.HEALTHY) if re.search(options.only, case.name)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(_run_program, programs))
    flagged = [result for result in results if result["warnings"]]
    learned = sum(1 for result in results if "learning-one-batch" in result["passed"])
    print(f"\n{len(results)} programs, {len(flagged)} with a warning or stopped; {learned} overfitted one batch")
    sys.exit(1 if options.check and not options.faulty and flagged else 0)


def _run_program(case: Any) -> dict[str, Any]:
    result = dry_run_result(case.path)
    warnings = "; ".join(f"{check}: {status}: {message}" for check, status, message in result["warnings"])
    unchecked = ", ".join(f"{check} ({why})" for check, why in result["unchecked"].items())
    line = f"{case.name:34} {result['seconds']:5.1f} s  {len(result['passed'])} passed  {warnings}"
    print(line + (f"  not checked: {unchecked}" if unchecked else ""), flush=True)
    return result


def dry_run_result(program: Path) -> dict[str, Any]:
    """Run `holdfast check` on a program in an empty folder and return its findings."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-check-") as folder:
        began = time.monotonic()
        only = [word for kind in KINDS for word in ("--only", kind)]
        done = subprocess.run(
            [str(HOLDFAST), "check", "--json", *only, "--", str(PYTHON), str(program)],
            cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        leftovers = sorted(path.name for path in Path(folder).iterdir())
    checks = json.loads(done.stdout)["checks"] if done.stdout.startswith("{") else []
    warnings = [
        (check["id"], check["status"], check["findings"][0]["message"])
        for check in checks
        if check["status"] in ("warn", "fatal")
    ]
    if not checks:
        warnings.append(("holdfast check", "failed", done.stderr[-300:]))
    if leftovers:
        warnings.append(("holdfast check", "left files behind", ", ".join(leftovers)))
    return {
        "seconds": seconds,
        "passed": [check["id"] for check in checks if check["status"] == "passed"],
        "warnings": warnings,
        "unchecked": {check["id"]: check["message"] for check in checks if check["status"] == "not checked"},
    }


def _import_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cases"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
