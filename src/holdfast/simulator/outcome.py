"""What came of a drill: the run's record against what the drill says must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.engine import WEIGHT
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import load_run_state
from holdfast.simulator.fault_log import firings
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.verdicts import Finding
    from holdfast.simulator.drill import Drill
    from holdfast.simulator.paths import DrillPaths


def described(drill: Drill) -> dict[str, Any]:
    return {
        "name": drill.name,
        "description": drill.description,
        "reproduces": drill.reproduces,
        "fault": drill.fault,
        "finds": dict(drill.finds),
        "verdicts": list(drill.verdicts),
    }


def skipped(drill: Drill, why: str) -> dict[str, Any]:
    return {**described(drill), "status": "skipped", "problems": [why], "findings": [], "dir": None, "seconds": 0.0}


def broken(drill: Drill, places: DrillPaths, why: str, seconds: float) -> dict[str, Any]:
    """The drill itself did not come to an end."""
    problems = [why, f"what was printed: {places.log}"]
    known = {"status": "failed", "problems": problems, "findings": [], "dir": str(places.run)}
    return {**described(drill), **known, "seconds": round(seconds, 1)}


def judged(drill: Drill, places: DrillPaths, seconds: float) -> dict[str, Any]:
    state = load_run_state(replay(RunFolder(places.run)))
    fired = firings(places.fired)
    at = fired[0]["step"] if fired else 0
    problems = list(_problems(drill, state, fired))
    ended = state.ended
    return {
        **described(drill),
        "status": "failed" if problems else "passed",
        "problems": problems,
        "fired": fired[:1],
        "findings": [_told(finding, at, expected=finding.rule in drill.finds) for finding in state.findings],
        "verdict": ended.verdict if ended is not None else None,
        "reason": ended.reason if ended is not None else "the run has not ended",
        "exit_status": ended.exit_status if ended is not None else None,
        "attempts": len(state.attempts),
        "steps": max((attempt.last_step for attempt in state.attempts), default=0),
        "dir": str(places.run),
        "seconds": round(seconds, 1),
    }


def _told(finding: Finding, fired_at: int, *, expected: bool) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "attempt": finding.attempt,
        "step": finding.step,
        "steps_after": max(0, finding.step - fired_at) if finding.step is not None else None,
        "expected": expected,
        "message": finding.message,
    }


def _problems(drill: Drill, state: RunState, fired: list[dict[str, Any]]) -> Iterator[str]:
    if not state.attempts or state.ended is None:
        yield "the run has no end"
        return
    if drill.fires and not fired:
        yield "the fault did not fire, so nothing was shown"
    for rule, severity in drill.finds.items():
        yield from _missed(drill, state, rule, severity, fired)
    verdict = state.ended.verdict
    if verdict not in drill.verdicts:
        yield f"the verdict is {verdict}, and should be {' or '.join(drill.verdicts)}"
    cause = cause_of(state.attempt)
    if drill.cause is not None and cause != drill.cause:
        yield f"the end was put down to {cause}, and should be to {drill.cause}"
    if drill.attempts > 1 and len(state.attempts) != drill.attempts:
        yield f"there were {len(state.attempts)} attempts, and should be {drill.attempts}"
    said = "\n".join(text for finding in state.findings for text in (finding.message, *finding.evidence))
    for words in drill.explained:
        if words not in said:
            yield f"nothing that was said has the words {words!r}"
    yield from _too_much(drill, state)


def _missed(drill: Drill, state: RunState, rule: str, severity: str, fired: list[dict[str, Any]]) -> Iterator[str]:
    found = [finding for finding in state.findings if finding.rule == rule]
    severe = [finding for finding in found if WEIGHT[finding.severity] >= WEIGHT[severity]]
    if not found:
        yield f"{rule} was not found"
    elif not severe:
        yield f"{rule} was only a {found[-1].severity}, and should be {severity}"
    elif drill.within is not None and fired:
        step = severe[0].step or 0
        if step - fired[0]["step"] > drill.within:
            yield f"{rule} was found at step {step}, more than {drill.within} steps after the fault at {fired[0]['step']}"


def _too_much(drill: Drill, state: RunState) -> Iterator[str]:
    """A wrong name for a failure misleads as much as silence: nothing else may be fatal, nor warn where all is well."""
    least = "fatal" if drill.fires else "warn"
    known = {*drill.finds, *drill.also}
    if drill.cause is not None:  # which of those about the end names it best is told by the cause
        known |= {rule.id for rule in all_rules() if rule.kind == "exit"}
    wrong = {f.rule for f in state.findings if WEIGHT[f.severity] >= WEIGHT[least] and f.rule not in known}
    if wrong:
        yield f"also found, and wrong here: {', '.join(sorted(wrong))}"
