"""Run one program under the real `holdfast run` and judge the result."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.run_state import RunState
from holdfast.schema import events
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import Entry, replay

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import HOLDFAST, PYTHON, RunFailed, execute, last_line, scratch

if TYPE_CHECKING:
    from cases import Faulty, Healthy

LIMIT_S = 180
GOOD_VERDICTS = {"learned", "unproven"}
Result = dict[str, Any]


def environment() -> dict[str, str]:
    ours = {"STEPS", "SEED", "PYTHONPATH", "OMP_NUM_THREADS"}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run_bare(case: Faulty | Healthy) -> Result:
    """Run a program without Holdfast and return its output."""
    with scratch() as folder:
        code, seconds = execute([PYTHON, str(case.path)], folder, environment(), LIMIT_S)
        output = (folder / "output.log").read_text(errors="replace").strip().splitlines()
        return {"name": case.name, "exit": code, "seconds": seconds, "output": output}


def under_holdfast(case: Faulty | Healthy, keep: Path | None = None) -> Result:
    with scratch() as folder:
        run = (keep / case.name if keep else folder / "run").absolute()
        command = [HOLDFAST, "run", "--json", "--max-attempts", "1", "--dir", str(run)]
        command += [*getattr(case, "options", ()), "--", PYTHON, str(case.path)]
        code, seconds = execute(command, folder, environment(), LIMIT_S)
        try:
            summary = json.loads((run / "summary.json").read_text())
        except (OSError, ValueError):
            raise RunFailed(f"exit {code} and no summary: {last_line(folder)}") from None
        result = {
            "name": case.name,
            "seconds": round(seconds, 1),
            "exit": code,
            "verdict": summary["verdict"],
            "reason": summary["reason"],
            "steps": summary["attempts"][-1]["last_step"],
            "findings": [],
        }
        judged = find_steps(RunFolder(run))
        for finding in summary["findings"]:
            reported = {key: finding[key] for key in ("rule", "severity", "step", "message")}
            reported["judged_at"] = judged.get((finding["rule"], finding["severity"]))
            result["findings"].append(reported)
        return result


def find_steps(run: RunFolder) -> dict[tuple[str, str], int]:
    """Return a dict of (rule, severity) to the last step whose events the finding needed.

    The supervisor reads the probe's events in batches, so a training of a thousand steps a second is far ahead of it when it
    reports a finding. Evaluating the journal again gives the step that the finding is based on.
    """
    engine = Engine(RunState())
    needed: dict[tuple[str, str], int] = {}
    for entry in replay(run):
        if isinstance(entry.event, events.FindingMade):
            continue
        for finding in engine.take(entry):
            step = engine.state.attempt.last_step
            if isinstance(entry.event, events.Checksum):  # ranks that do not wait for each other are at different steps
                step = entry.event.step
            needed.setdefault((finding.rule, finding.severity), step)
            engine.state.fold(Entry(events.FindingMade(at=entry.event.at, finding=finding), entry.attempt))
    return needed


def judge_faulty(case: Faulty, result: Result) -> Result:
    """Add whether the fault was detected: by the first warning or fatal finding that identifies it correctly."""
    alarms = [finding for finding in result["findings"] if finding["severity"] != "note"]
    right = [finding for finding in alarms if finding["rule"] in case.rules]
    by = min(right, key=lambda finding: step_of(finding) or 0, default=None)
    result.update(expected=list(case.rules), fault=case.fault, detected=by is not None, by=by, delay=None)
    if by is not None and case.checkable is not None and step_of(by) is not None:
        result["delay"] = max(0, step_of(by) - case.checkable)
    result["also"] = sorted({finding["rule"] for finding in alarms} - set(case.rules))
    return result


def judge_healthy(case: Healthy, result: Result) -> Result:
    """Add whether there was a false alarm: any warning or fatal finding, or a bad verdict."""
    alarms = [finding for finding in result["findings"] if finding["severity"] != "note"]
    result.update(looks_like=case.looks_like, alarms=alarms)
    result["false_alarm"] = bool(alarms) or result["verdict"] not in GOOD_VERDICTS
    return result


def step_of(finding: dict[str, Any]) -> int | None:
    """Return the last step whose events the finding needed, or the finding's own step if the journal does not show it."""
    return finding["judged_at"] if finding["judged_at"] is not None else finding["step"]
