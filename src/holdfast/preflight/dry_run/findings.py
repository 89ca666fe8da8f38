"""The findings of the rules for a dry run: rules that a few steps can prove, and rules about a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import RunState
from holdfast.process.exit_evidence import collect_exit_evidence
from holdfast.schema import events
from holdfast.schema.exits import find_signal
from holdfast.storage.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding


def find_problems(dry_run: DryRunResult) -> list[Finding]:
    rules = [rule for rule in all_rules() if rule.in_dry_run or rule.kind == "exit"]
    engine = Engine(RunState(), rules)
    found: dict[str, Finding] = {}
    for event in _replay(dry_run):
        for finding in engine.take(Entry(event, 1, None if isinstance(event, _SUPERVISOR_EVENTS) else 0)):
            found[finding.rule] = finding
            engine.state.fold(Entry(events.FindingMade(at=event.at, finding=finding), 1))
    return list(found.values())


_SUPERVISOR_EVENTS = (events.RunStarted, events.AttemptStarted, events.AttemptEnded)


def _find_cutoff(dry_run: DryRunResult) -> float:
    """Return the time up to which the training itself would have behaved in the same way."""
    event, curves = dry_run.first("experiments"), dry_run.select("curve")
    if event is not None and event.get("drawn"):
        return float(event["at"])  # from here each step uses the same random numbers, so also the same dropout mask
    return float(curves[0]["at"]) if curves else float("inf")


def _replay(dry_run: DryRunResult) -> Iterator[events.AnyEvent]:
    """Yield the events up to the first experiment that the training itself would never make: another learning rate or zeroed inputs."""
    command = list(dry_run.command)
    yield events.RunStarted(
        at=0.0, schema=events.SCHEMA, run="dry_run", command=command, cwd="", holdfast="", platform="", python="",
        supervisor=0,
    )  # fmt: skip
    yield events.AttemptStarted(at=0.0, attempt=1, pid=0, command=command)
    until = _find_cutoff(dry_run)
    last = 0
    for event in dry_run.events:
        if event.at <= until:
            yield event
            last = getattr(event, "step", None) or last
    if dry_run.ended_alone and dry_run.code:
        code = dry_run.code
        name = find_signal(-code) if code < 0 else None
        yield events.AttemptEnded(
            at=float("inf"), attempt=1, code=None if name else code, signal=name, last_step=last,
            seconds=dry_run.seconds, evidence=collect_exit_evidence(code, name, dry_run.last_lines), last_lines=list(dry_run.last_lines),
        )  # fmt: skip
