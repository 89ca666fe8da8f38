"""What the rules of a run say of a dry run's steps: those that a few steps can prove, and those about an end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import RunState
from holdfast.process.exit_evidence import collect_exit_evidence
from holdfast.schema import events
from holdfast.storage.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

OF_STEPS = frozenset(
    (
        *("loss-all-zero", "loss-component-zero", "loss-not-finite", "gradients-missing", "gradients-zero"),
        *("gradients-not-finite", "gradients-never-cleared", "weights-frozen", "weights-outside-optimizer"),
        *(
            "optimizer-never-steps",
            "frozen-weights-moving",
            "label-count-negative",
            "labels-missing",
            "nan-logged-as-zero",
        ),
    )
)
"""Not those about repeated batches, curves or memory: a dry run repeats a batch on purpose, and is short."""


def findings_of(dry_run_result: DryRunResult) -> list[Finding]:
    rules = [rule for rule in all_rules() if rule.id in OF_STEPS or rule.kind == "exit"]
    engine = Engine(RunState(), rules)
    found: dict[str, Finding] = {}
    for event in _history(dry_run_result):
        for finding in engine.take(Entry(event, 1, None if isinstance(event, _OURS) else 0)):
            found[finding.rule] = finding
            engine.state.fold(Entry(events.FindingMade(at=event.at, finding=finding), 1))
    return list(found.values())


_OURS = (events.RunStarted, events.AttemptStarted, events.AttemptEnded)


def _of_the_training(dry_run_result: DryRunResult) -> float:
    """Until when what the probe saw could have been seen in the training itself."""
    told, curves = dry_run_result.one("experiments"), dry_run_result.of("curve")
    if told is not None and told.get("drawn"):
        return float(told["at"])  # the same random numbers for every step: the same dropout too
    return float(curves[0]["at"]) if curves else float("inf")


def _history(dry_run_result: DryRunResult) -> Iterator[events.AnyEvent]:
    """Up to the first experiment that the training itself would never make: another rate, or inputs zeroed."""
    command = list(dry_run_result.command)
    yield events.RunStarted(
        at=0.0, schema=events.SCHEMA, run="dry_run", command=command, cwd="", holdfast="", platform="", python="",
        supervisor=0,
    )  # fmt: skip
    yield events.AttemptStarted(at=0.0, attempt=1, pid=0, command=command)
    until = _of_the_training(dry_run_result)
    last = 0
    for event in dry_run_result.events:
        if event.at <= until:
            yield event
            last = getattr(event, "step", None) or last
    if dry_run_result.by_itself and dry_run_result.code:
        code = dry_run_result.code
        name = signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else None
        yield events.AttemptEnded(
            at=float("inf"), attempt=1, code=None if name else code, signal=name, last_step=last,
            seconds=dry_run_result.seconds, evidence=collect_exit_evidence(code, name, dry_run_result.words), last_words=list(dry_run_result.words),
        )  # fmt: skip
