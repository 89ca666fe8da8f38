"""What the rules of a run say of a rehearsal's steps: those that a few steps can prove, and those about an end."""

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

    from holdfast.preflight.dry_run.run import Rehearsed
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
"""Not those about repeated batches, curves or memory: a rehearsal repeats a batch on purpose, and is short."""


def findings_of(rehearsed: Rehearsed) -> list[Finding]:
    rules = [rule for rule in all_rules() if rule.id in OF_STEPS or rule.kind == "exit"]
    engine = Engine(RunState(), rules)
    found: dict[str, Finding] = {}
    for event in _history(rehearsed):
        for finding in engine.take(Entry(event, 1, None if isinstance(event, _OURS) else 0)):
            found[finding.rule] = finding
            engine.state.fold(Entry(events.FindingMade(at=event.at, finding=finding), 1))
    return list(found.values())


_OURS = (events.RunStarted, events.AttemptStarted, events.AttemptEnded)


def _of_the_training(rehearsed: Rehearsed) -> float:
    """Until when what the probe saw could have been seen in the training itself."""
    told, curves = rehearsed.one("experiments"), rehearsed.of("curve")
    if told is not None and told.get("drawn"):
        return float(told["at"])  # the same random numbers for every step: the same dropout too
    return float(curves[0]["at"]) if curves else float("inf")


def _history(rehearsed: Rehearsed) -> Iterator[events.AnyEvent]:
    """Up to the first experiment that the training itself would never make: another rate, or inputs zeroed."""
    command = list(rehearsed.command)
    yield events.RunStarted(
        at=0.0, schema=events.SCHEMA, run="rehearsal", command=command, cwd="", holdfast="", platform="", python="",
        supervisor=0,
    )  # fmt: skip
    yield events.AttemptStarted(at=0.0, attempt=1, pid=0, command=command)
    until = _of_the_training(rehearsed)
    last = 0
    for event in rehearsed.events:
        if event.at <= until:
            yield event
            last = getattr(event, "step", None) or last
    if rehearsed.by_itself and rehearsed.code:
        code = rehearsed.code
        name = signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else None
        yield events.AttemptEnded(
            at=float("inf"), attempt=1, code=None if name else code, signal=name, last_step=last,
            seconds=rehearsed.seconds, evidence=evidence_of(code, name, rehearsed.words), last_words=list(rehearsed.words),
        )  # fmt: skip
