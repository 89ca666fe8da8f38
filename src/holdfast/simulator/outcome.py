"""The result of a drill: the run's record compared with the drill's expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.engine import WEIGHT
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import load_run_state
from holdfast.simulator.fault_log import read_faults
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.verdicts import Finding
    from holdfast.simulator.drill import Drill
    from holdfast.simulator.paths import DrillPaths


def describe_drill(drill: Drill) -> dict[str, Any]:
    return {
        "name": drill.name,
        "description": drill.description,
        "reproduces": drill.reproduces,
        "fault": drill.fault,
        "finds": dict(drill.finds),
        "verdicts": list(drill.verdicts),
    }


def describe_skipped(drill: Drill, why: str) -> dict[str, Any]:
    return {
        **describe_drill(drill),
        "status": "skipped",
        "problems": [why],
        "findings": [],
        "dir": None,
        "seconds": 0.0,
    }


def describe_broken(drill: Drill, paths: DrillPaths, why: str, seconds: float) -> dict[str, Any]:
    """Return the result of a drill that did not finish."""
    problems = [why, f"output: {paths.log}"]
    result = {"status": "failed", "problems": problems, "findings": [], "dir": str(paths.run)}
    return {**describe_drill(drill), **result, "seconds": round(seconds, 1)}


def judge_drill(drill: Drill, paths: DrillPaths, seconds: float) -> dict[str, Any]:
    state = load_run_state(replay(RunFolder(paths.run)))
    fired = read_faults(paths.faults)
    at = fired[0]["step"] if fired else 0
    problems = list(_find_problems(drill, state, fired))
    ended = state.ended
    return {
        **describe_drill(drill),
        "status": "failed" if problems else "passed",
        "problems": problems,
        "fired": fired[:1],
        "findings": [
            _describe_finding(finding, at, expected=finding.rule in drill.finds) for finding in state.findings
        ],
        "verdict": ended.verdict if ended is not None else None,
        "reason": ended.reason if ended is not None else "the run has not ended",
        "exit_status": ended.exit_status if ended is not None else None,
        "attempts": len(state.attempts),
        "steps": max((attempt.last_step for attempt in state.attempts), default=0),
        "dir": str(paths.run),
        "seconds": round(seconds, 1),
    }


def _describe_finding(finding: Finding, fired_at: int, *, expected: bool) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "attempt": finding.attempt,
        "step": finding.step,
        "steps_after": max(0, finding.step - fired_at) if finding.step is not None else None,
        "expected": expected,
        "message": finding.message,
    }


def _find_problems(drill: Drill, state: RunState, fired: list[dict[str, Any]]) -> Iterator[str]:
    if not state.attempts or state.ended is None:
        yield "the run did not end"
        return
    if drill.has_fault and not fired:
        yield "the fault did not fire, so the drill proves nothing"
    for rule, severity in drill.finds.items():
        yield from _find_missed(drill, state, rule, severity, fired)
    verdict = state.ended.verdict
    if verdict not in drill.verdicts:
        yield f"the verdict is {verdict}, expected {' or '.join(drill.verdicts)}"
    cause = cause_of(state.attempt)
    if drill.cause is not None and cause != drill.cause:
        yield f"the cause of the end is {cause}, expected {drill.cause}"
    if drill.attempts > 1 and len(state.attempts) != drill.attempts:
        yield f"the run made {len(state.attempts)} attempts, expected {drill.attempts}"
    texts = "\n".join(text for finding in state.findings for text in (finding.message, *finding.evidence))
    for words in drill.expected_words:
        if words not in texts:
            yield f"no finding contains the text {words!r}"
    yield from _find_unexpected(drill, state)


def _find_missed(drill: Drill, state: RunState, rule: str, severity: str, fired: list[dict[str, Any]]) -> Iterator[str]:
    findings = [finding for finding in state.findings if finding.rule == rule]
    matching = [finding for finding in findings if WEIGHT[finding.severity] >= WEIGHT[severity]]
    if not findings:
        yield f"{rule} was not found"
    elif not matching:
        yield f"{rule} has severity {findings[-1].severity}, expected {severity}"
    elif drill.within_steps is not None and fired:
        step = matching[0].step or 0
        if step - fired[0]["step"] > drill.within_steps:
            yield f"{rule} was found at step {step}, more than {drill.within_steps} steps after the fault at {fired[0]['step']}"


def _find_unexpected(drill: Drill, state: RunState) -> Iterator[str]:
    """Report unexpected findings: a wrong diagnosis misleads as much as silence. Nothing else may be fatal, and a healthy
    training must not get a warning.
    """
    min_severity = "fatal" if drill.has_fault else "warn"
    expected = {*drill.finds, *drill.may_find}
    if drill.cause is not None:  # the cause decides which exit rule fits best
        expected |= {rule.id for rule in all_rules() if rule.kind == "exit"}
    wrong = {f.rule for f in state.findings if WEIGHT[f.severity] >= WEIGHT[min_severity] and f.rule not in expected}
    if wrong:
        yield f"unexpected findings: {', '.join(sorted(wrong))}"
