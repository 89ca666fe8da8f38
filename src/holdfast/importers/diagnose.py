"""A record of a training that Holdfast did not watch, judged by the same rules as one that it did.

recognise -> read as events -> engine and rules -> findings -> verdict -> explanation. Nothing is written, nothing is run, and
what the record cannot say is said to be unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from holdfast.diagnosis import output_patterns
from holdfast.diagnosis.aggregators.metrics import best_of, is_loss
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.explanation import Explanation, NextStep, explain
from holdfast.diagnosis.rules import all_rules, by_id
from holdfast.diagnosis.rules.probe_absent import reason as why_unseen
from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.verdict import EXIT_STATUS, find_learning_failure, verdict
from holdfast.importers import detect
from holdfast.importers.exits import check_exit_code
from holdfast.importers.settings import read_settings
from holdfast.process.output_matcher import OutputMatcher
from holdfast.schema import events
from holdfast.schema.shell_text import shell_quoted
from holdfast.schema.verdicts import Outcome
from holdfast.storage.journal import Entry
from holdfast.storage.redact import Redactor, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.diagnosis.run_state import AttemptState
    from holdfast.importers.base import Reading
    from holdfast.schema.verdicts import Finding, Verdict

FATAL_FOUND = 3
NOT_SET = ("", "~", "null", "none")
JUDGED_EACH = 1000
"""So many events of each kind are judged one by one, and of further ones every 32nd and the last."""
JUDGED_EVERY = 32
FEW = 3
"""Fewer values than this say nothing of a course."""


@dataclass(frozen=True)
class Diagnosis:
    path: str
    reading: Reading
    state: RunState
    verdict: Verdict | None
    """None where the run goes on, or nothing was run."""
    explanation: Explanation
    facts: list[str]
    """What the record shows beside findings: how far it came, where it was at its best."""
    exit_status: int


def diagnose(path: Path | None, *, exit_code: int | None = None) -> Diagnosis:
    """The record at a path, or on standard input where there is none."""
    check_exit_code(exit_code)
    lines = OutputMatcher(output_patterns.needles(), output_patterns.rules_matching)
    reading = detect.read(path, exit_code=exit_code, lines=lines)
    state = _judged(reading, _settings_beside(path))
    came_to = _verdict(reading, state)
    if came_to is not None:
        ended = events.RunEnded(
            at=state.last_at,
            verdict=came_to.outcome.value,
            reason=came_to.reason,
            proofs=came_to.proofs,
            exit_status=came_to.exit_status,
        )
        state.fold(Entry(ended, state.attempt.number))
    named = str(path) if path is not None else "-"
    return Diagnosis(
        path=named,
        reading=reading,
        state=state,
        verdict=came_to,
        explanation=_explained(reading, state, came_to, named),
        facts=_facts(reading, state),
        exit_status=_exit_status(state),
    )


# --- from entries to findings -----------------------------------------------------------------------------------------


def _settings_beside(path: Path | None) -> events.Settings | None:
    """What Ultralytics trained on, as its args.yaml says: advice about devices is for others than the CPU."""
    folder = path if path is None or path.is_dir() else path.parent
    told = folder / "args.yaml" if folder is not None else None
    device = read_settings(told, []).get("device") if told is not None and told.is_file() else None
    if device is None or device.lower() in NOT_SET:
        return None
    return events.Settings(at=0.0, source="args.yaml", values={"device": device})


def _judged(reading: Reading, settings: events.Settings | None) -> RunState:
    state = RunState()
    engine = Engine(state, [rule for rule in all_rules() if reading.own or rule.kind != "watching"])
    senseless = 0
    sparing = _Sparing(engine, spares=not reading.own)
    for entry in redacted(reading.entries, Redactor()):
        try:
            sparing.take(entry)
        except Exception:  # noqa: BLE001 - a record is anybody's: an entry that makes no sense must not hide the others
            senseless += 1
        if settings is not None and not reading.own and isinstance(entry.event, events.AttemptStarted):
            _take(engine, Entry(settings, entry.event.attempt, 0))
    if senseless:
        reading.notes.append(f"{senseless} entries make no sense and were left out.")
    return state


class _Sparing:
    """Asks the rules after each of the first events of a kind, then after some, and at the end. Each answer costs as much as the
    whole course that it looks at, which is kept thinned out anyway.
    """

    def __init__(self, engine: Engine, *, spares: bool) -> None:
        self._engine = engine
        self._spares = spares
        self._counts: dict[type[events.Event], int] = {}
        self._unasked: dict[type[events.Event], None] = {}

    def take(self, entry: Entry) -> None:
        kind = type(entry.event)
        if isinstance(entry.event, events.AttemptEnded):
            for other in self._unasked:
                _note(self._engine, entry.event.at, self._engine.judge(other))
            self._unasked.clear()
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        asking = not self._spares or count <= JUDGED_EACH or count % JUDGED_EVERY == 0
        if asking:
            self._unasked.pop(kind, None)
        else:
            self._unasked[kind] = None
        _take(self._engine, entry, asking=asking)


def _take(engine: Engine, entry: Entry, *, asking: bool = True) -> None:
    _note(engine, entry.event.at, engine.take(entry, evaluate_rules=asking))


def _note(engine: Engine, at: float, findings: Iterator[Finding]) -> None:
    for finding in list(findings):
        step = finding.step or None  # a record without steps has no step 0
        made = events.FindingMade(at=at, finding=msgspec.structs.replace(finding, step=step))
        _take(engine, Entry(made, engine.state.attempt.number))


# --- what it came to --------------------------------------------------------------------------------------------------


def _verdict(reading: Reading, state: RunState) -> Verdict | None:
    if not state.attempts or state.attempt.ended is None or not reading.over:
        return None
    if reading.own:
        return verdict(state)
    came_to = verdict(state)
    end = reading.end
    if end is not None and not end.known and came_to.outcome is Outcome.FAILED:
        unknown = "the record does not say how it ended, or whether it has"
        shown = [proof.detail for proof in came_to.proofs if proof.positive and proof.answer == "holds"]
        reason = "; ".join([unknown, *shown])
        status = EXIT_STATUS[Outcome.UNPROVEN]
        came_to = msgspec.structs.replace(came_to, outcome=Outcome.UNPROVEN, reason=reason, exit_status=status)
    return _without_probe(came_to, state)


def _without_probe(came_to: Verdict, state: RunState) -> Verdict:
    """Nobody expected a probe in a record like this: that it is not there is no news."""
    why, _ = why_unseen(state.attempt)
    proofs = [msgspec.structs.replace(proof, detail=proof.detail.replace(f" ({why})", "")) for proof in came_to.proofs]
    return msgspec.structs.replace(came_to, reason=came_to.reason.replace(f" ({why})", ""), proofs=proofs)


def _exit_status(state: RunState) -> int:
    """3 where a fatal finding stands at the end."""
    if not state.attempts:
        return 0
    rules = by_id()
    fatal = [
        rules[found.rule].kind for found in state.attempt.findings if found.severity == "fatal" and found.rule in rules
    ]
    beyond_learning = any(kind not in ("learning", "proof") for kind in fatal)
    return FATAL_FOUND if beyond_learning or find_learning_failure(state) is not None else 0


# --- in words ---------------------------------------------------------------------------------------------------------


def _explained(reading: Reading, state: RunState, came_to: Verdict | None, path: str) -> Explanation:
    if not state.attempts:
        story = [f"{reading.name} is {reading.what}: nothing has run, so there is nothing to judge."]
        return Explanation([*story, *reading.notes], None, "unknown", [], [], [])
    explained = explain(state, reading.reference)
    if reading.own:
        return explained
    steps = _next_steps(reading, path, explained.next_steps, came_to)
    story = [_what_it_shows(reading, state), *explained.story[1:]]
    if steps and not explained.next_steps:
        story.append(f"Next: {steps[0].text}.")
    return replace(explained, story=story, unknown=_unknown(reading, state, explained), next_steps=steps)


def _what_it_shows(reading: Reading, state: RunState) -> str:
    attempt = state.attempt
    came = f"it came to {reading.position}" if reading.position else "it does not say how far it came"
    return f"{reading.name} is {reading.what}; {came} and {_ended(reading, attempt)}."


def _ended(reading: Reading, attempt: AttemptState) -> str:
    end, ended = reading.end, attempt.ended
    if end is None or ended is None:
        return "has not ended"
    if not end.known:
        return "how it ended is not recorded"
    if end.finished:
        return "finished"
    if ended.signal:
        return f"was ended by {ended.signal}"
    return f"ended with exit code {ended.code}" if "exit code" in end.how else "ended with an error"


def _unknown(reading: Reading, state: RunState, explained: Explanation) -> list[str]:
    found = list(explained.unknown)
    end = reading.end
    if end is not None and end.finished and "not recorded" in end.how:
        found.insert(0, f"Its exit code: it is taken to have finished, by {end.how}. If it died, give --exit-code N.")
    metrics = state.attempt.metrics
    tracked = [len(track.points) for name, track in metrics.tracks.items() if is_loss(name)]
    if tracked and max(tracked) < FEW <= len(metrics.history):
        found.append(
            f"How the losses went: they are given for {max(tracked)} of {len(metrics.history)} epochs, so neither a fall nor "
            "overfitting can be told. The whole results.csv has them."
        )
    return found


def _next_steps(reading: Reading, path: str, steps: list[NextStep], came_to: Verdict | None) -> list[NextStep]:
    ordered = list(steps)
    if came_to is not None and came_to.outcome is Outcome.NOT_LEARNED:
        return ordered
    if reading.resume_hint is not None:
        ordered.insert(min(1, len(ordered)), NextStep(reading.resume_hint.text, reading.resume_hint.command))
    if reading.end is not None and not reading.end.known:
        again = f"holdfast diagnose {shell_quoted(path)} --exit-code N"
        ordered += [
            NextStep("start it under Holdfast, which records signal, last words and memory", "holdfast run -- COMMAND"),
            NextStep("or keep the exit code (`echo $?` right after it) and give it here", again),
        ]
        if reading.has_log:
            once = "before anything is called the cause: change one thing at a time, and repeat each more than once"
            ordered.append(NextStep(once))
    return ordered


def _facts(reading: Reading, state: RunState) -> list[str]:
    if not state.attempts:
        return []
    found = []
    best = best_of(state.validated)
    if best is not None and math.isfinite(best.value):
        found.append(f"Best epoch: {best.epoch}, with {best.name} {best.value:.4g}.")
    if reading.end is not None and reading.end.known:
        found.append(f"How it ended, by {reading.end.how}.")
    return found
