"""What the rules of a run say of a dry run's steps: those that a few steps can prove, and those about an end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import RunState
from holdfast.process.exit_evidence import evidence_of
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


def find_problems(dry_run: DryRunResult) -> list[Finding]:
    rules = [rule for rule in all_rules() if rule.id in OF_STEPS or rule.kind == "exit"]
    engine = Engine(RunState(), rules)
    found: dict[str, Finding] = {}
    for event in _history(dry_run):
        for finding in engine.take(Entry(event, 1, None if isinstance(event, _OURS) else 0)):
            found[finding.rule] = finding
            engine.state.fold(Entry(events.FindingMade(at=event.at, finding=finding), 1))
    return list(found.values())


_OURS = (events.RunStarted, events.AttemptStarted, events.AttemptEnded)


def _of_the_training(dry_run: DryRunResult) -> float:
    """Until when what the probe saw could have been seen in the training itself."""
    told, curves = dry_run.one("experiments"), dry_run.of("curve")
    if told is not None and told.get("drawn"):
        return float(told["at"])  # the same random numbers for every step: the same dropout too
    return float(curves[0]["at"]) if curves else float("inf")


def _history(dry_run: DryRunResult) -> Iterator[events.AnyEvent]:
    """Up to the first experiment that the training itself would never make: another rate, or inputs zeroed."""
    command = list(dry_run.command)
    yield events.RunStarted(
        at=0.0, schema=events.SCHEMA, run="dry_run", command=command, cwd="", holdfast="", platform="", python="",
        supervisor=0,
    )  # fmt: skip
    yield events.AttemptStarted(at=0.0, attempt=1, pid=0, command=command)
    until = _of_the_training(dry_run)
    last = 0
    for event in dry_run.events:
        if event.at <= until:
            yield event
            last = getattr(event, "step", None) or last
    if dry_run.ended_alone and dry_run.code:
        code = dry_run.code
        name = signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else None
        yield events.AttemptEnded(
            at=float("inf"), attempt=1, code=None if name else code, signal=name, last_step=last,
            seconds=dry_run.seconds, evidence=evidence_of(code, name, dry_run.last_lines), last_words=list(dry_run.last_lines),
        )  # fmt: skip
