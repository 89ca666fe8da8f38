"""Failures of the field reports, injected into a real YOLO training, which must survive unattended. See README.md.

python bench/survival/faults.py [--only REGEX] [--keep DIR] [--json PATH] [--check]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from shapes import make_shapes  # noqa: E402

from holdfast.simulator import injection  # noqa: E402

HOLDFAST = Path(sys.executable).with_name("holdfast")
SETTINGS = {
    "model": "yolo11n.yaml", "data": "data.yaml", "imgsz": 64, "epochs": 10, "batch": 4, "nbs": 4, "workers": 0, "optimizer": "AdamW",
    "lr0": 0.002, "warmup_epochs": 1, "mosaic": 0.0, "plots": False, "device": "cpu", "amp": False,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    name: str
    faults: dict[str, Any]
    changes: tuple[str, ...] = ()
    """Settings that must have been changed."""
    finds: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    memory: str | None = None
    planned: bool = False
    """Whether there must be a planned restart."""


FAULTS = (
    Fault("killed four times, at arbitrary batches", {"kill": {"at": [7, 40, 41, 90]}}, finds=("killed-externally",)),
    Fault(
        "a leak, and a kill at the limit", {"leak": {"mb": 3.0, "limit_mb": 1000}}, finds=("memory-leak",), memory="1000 MiB",
        planned=True, settings={"epochs": 30},
    ),
    Fault(
        "a validation that takes too much memory", {"spike": {"mb": 80, "limit_mb": 1000}}, finds=("killed-out-of-memory",), memory="1000 MiB",
        changes=("validation.",),
    ),
    Fault(
        "the assigner's shape mismatch, repeatedly", {"device": {}, "assigner": {"at": [20, 21, 22, 23]}}, changes=("assigner",),
        finds=("assigner-shape-mismatch",),
        settings={"device": "mps", "epochs": 12},
    ),
    Fault("NaN in the weights", {"nan": {"at": 50}}, finds=("loss-not-finite",)),
    Fault("box and dfl losses of zero on a faulty device", {"device": {}, "zero": {}}, changes=("device",), finds=("loss-component-zero",),
          settings={"device": "mps", "epochs": 8}),
    Fault("epochs that take longer and longer", {"slow": {"from": 60, "seconds": 0.5}}, finds=("epoch-time-blowup",), changes=("cache",),
          settings={"imgsz": 160}),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    fault: str
    survived: bool
    verdict: str
    attempts: int
    changes: list[str]
    findings: list[str]
    map50: float | None
    wall_s: float
    missing: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(prefix="holdfast-faults-"))
    rows = []
    for n, fault in enumerate(FAULTS):
        if re.search(options.only, fault.name):
            rows.append(run_fault(fault, root / f"{n}"))
            print(as_line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if options.check and not all(row.survived for row in rows) else 0


def run_fault(fault: Fault, folder: Path) -> Row:
    folder.mkdir(parents=True)
    make_shapes(folder)
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**SETTINGS, **fault.settings}.items()]
    budget = f'memory = "{fault.memory}"\n' if fault.memory else ""
    (folder / "plan.toml").write_text(
        f'name = "faults"\ntrainer = "ultralytics"\npython = {json.dumps(sys.executable)}\nsample_every_s = 0.25\n\n[settings]\n'
        + "\n".join(lines)
        + f"\n\n[budget]\nattempts = 12\n{budget}"
    )
    environment = {**os.environ, **injection.environment(folder / "faults", **fault.faults), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [HOLDFAST, "run", "--no-check", "--dir", str(folder / "run"), "--json", "plan.toml"],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=(folder / "err.txt").open("wb"), check=False,
    )  # fmt: skip
    summary = json.loads(done.stdout.splitlines()[-1])
    if "error" in summary:
        raise SystemExit(summary["error"])
    return judge(fault, summary, done.returncode, time.monotonic() - began, folder)


def judge(fault: Fault, summary: dict[str, Any], code: int, wall: float, folder: Path) -> Row:
    changes = [f"{c['setting']} {c['before']}->{c['after']}" for a in summary["attempts"] for c in a["changes"]]
    found = sorted({finding["rule"] for finding in summary["findings"] if finding["severity"] != "note"})
    missing = [f"finding {rule}" for rule in fault.finds if rule not in found]
    missing += [f"change of {what}" for what in fault.changes if not any(c.startswith(what) for c in changes)]
    planned = any(attempt["stopped_by"] == "planned restart" for attempt in summary["attempts"])
    missing += ["a planned restart"] if fault.planned and not planned else []
    missing += (
        []
        if code == 0 and summary["verdict"] == "learned"
        else [f"verdict {summary['verdict']}: {summary['reason'][:200]}"]
    )
    return Row(
        fault.name, not missing, str(summary["verdict"]), len(summary["attempts"]), changes, found, read_map50(folder), wall, missing,
    )  # fmt: skip


def read_map50(folder: Path) -> float | None:
    tables = sorted((folder / "runs").rglob("results.csv"), key=lambda path: path.stat().st_mtime)
    if not tables:
        return None
    head, *rows = [line.split(",") for line in tables[-1].read_text().splitlines()]
    column = [name.strip() for name in head].index("metrics/mAP50(B)")
    values = [float(row[column]) for row in rows if row[column].strip()]
    return max(values, default=None)


def as_line(row: Row) -> str:
    text = f"{'survived' if row.survived else 'NOT SURVIVED'}: {row.fault}: {row.verdict}, {row.attempts} attempts, best mAP50 {row.map50}, {row.wall_s:.0f} s"
    text += f"\n    changed: {', '.join(row.changes) or 'nothing'}; found: {', '.join(row.findings)}"
    return text + (f"\n    missing: {'; '.join(row.missing)}" if row.missing else "")


if __name__ == "__main__":
    sys.exit(main())
