"""Every fault of a single operator and every benign device, under the operator check. See README.md.

python bench/op_check/run.py [--only REGEX] [--program plain|yolo] [--check]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import op_check_programs  # noqa: E402 - after its path

from holdfast.simulator.accelerator.catalogue import BENIGN_DEVICES, OP_FAULTS, BenignDevice, OpFault  # noqa: E402

MAX_SECONDS = 60.0
"""Time limit of a case."""


@dataclass(frozen=True)
class Row:
    program: str
    name: str
    found: str
    known: str
    step: str
    seconds: float
    processor: float
    compared: str
    unmet: str | None

    def __str__(self) -> str:
        mark = "ok " if self.unmet is None else "NOT"
        result = self.found if self.unmet is None else f"{self.found or 'nothing'}: {self.unmet}"
        return (
            f"{mark} {self.program:5} {self.name:52} {result:62} {self.known:4} {self.step:4} "
            f"{self.seconds:5.1f} s {self.processor:5.1f} s {self.compared}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--program", choices=("plain", "yolo"), help="only this program")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a case is not met")
    options = parser.parse_args()
    print(f"{'':3} {'':5} {'case':52} {'operators named':62} {'':4} {'step':4} {'wall':>7} {'cpu':>7} calls compared")
    rows = []
    for program in [options.program] if options.program else ["plain", "yolo"]:
        if program == "yolo":
            op_check_programs.import_yolo()
        for case in (*OP_FAULTS, *BENIGN_DEVICES):
            if re.search(options.only, case.name):
                row = run_benign(program, case) if isinstance(case, BenignDevice) else run_fault(program, case)
                if row is not None:
                    rows.append(row)
                    print(row, flush=True)
    unmet = [row for row in rows if row.unmet is not None]
    print(f"{len(rows)} cases, {len(unmet)} not met; the longest took {max(row.seconds for row in rows):.0f} s")
    return 1 if unmet and options.check else 0


def run_fault(program: str, fault: OpFault) -> Row | None:
    make = fault.plain if program == "plain" else fault.yolo
    if make is None:
        return None
    if fault.race:
        return run_race(program, fault)
    training = op_check_programs.plain(fault.optimizer) if program == "plain" else op_check_programs.yolo()
    checked = op_check_programs.check(training, make())
    first = checked.findings[0] if checked.findings else {}
    named = ", ".join(dict.fromkeys(f"{finding['operator'][5:]} {finding['kind']}" for finding in checked.findings))
    known = (first.get("known") or {}).get("id", "")
    unmet = op_check_programs.missed(fault, checked) or check_time(checked.seconds)
    return make_row(program, fault.name, named, known, str(first.get("step", "")), checked, unmet)


def run_race(program: str, fault: OpFault) -> Row:
    """Run a race: each operator alone is right, but whole steps are wrong."""
    make = fault.plain if program == "plain" else fault.yolo
    training = op_check_programs.plain if program == "plain" else op_check_programs.yolo
    began = time.monotonic()
    checked = op_check_programs.check(training(), make())
    agreement = op_check_programs.agreement(training, make)
    seconds = time.monotonic() - began
    worst = next(iter((*agreement.races, *agreement.wrong)), None)
    clean = op_check_programs.agreement(training, None)
    unmet = None
    if agreement.agrees:
        unmet = "whole steps agree"
    elif checked.findings:
        unmet = f"{checked.findings[0]['operator']} was accused"
    elif not clean.agrees:
        unmet = f"a clean device disagrees: {clean.message}"
    named = "" if worst is None else f"whole steps: {worst.kind} {worst.name}, {worst.times:.0f} times the tolerance"
    row = make_row(
        program, fault.name, named, "", str(worst.step if worst else ""), checked, unmet or check_time(seconds)
    )
    return replace(row, seconds=seconds)


def run_benign(program: str, case: BenignDevice) -> Row:
    training = op_check_programs.plain() if program == "plain" else op_check_programs.yolo()
    checked = op_check_programs.check(training, case.make() if case.make else None)
    named = ", ".join(dict.fromkeys(f"{finding['operator'][5:]} {finding['kind']}" for finding in checked.findings))
    unmet = check_time(checked.seconds)
    if named:
        unmet = "accused"
    elif case.make and not checked.fired:
        unmet = "it did not round"
    elif not checked.ended.get("compared"):
        unmet = f"nothing was compared: {checked.output[-300:]}"
    return make_row(program, case.name, named or "-", "", "", checked, unmet)


def make_row(
    program: str, name: str, named: str, known: str, step: str, checked: op_check_programs.Checked, unmet: str | None
) -> Row:
    ended = checked.ended
    compared = f"{ended.get('compared', '?')} of {ended.get('calls', '?')}"
    return Row(program, name, named, known, step, checked.seconds, checked.processor_seconds, compared, unmet)


def check_time(seconds: float) -> str | None:
    return f"took {seconds:.0f} s" if seconds > MAX_SECONDS else None


if __name__ == "__main__":
    sys.exit(main())
