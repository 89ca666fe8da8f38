"""Diagnosis of a training that Holdfast did not supervise, with the same rules as for a supervised one.

detect -> read as events -> engine and rules -> findings -> verdict -> explanation. Nothing is written, nothing is run, and
what the record does not contain is reported as unknown.
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
from holdfast.importers.base import framework_importers
from holdfast.importers.exits import check_exit_code
from holdfast.importers.settings import read_settings
from holdfast.process.output_matcher import OutputMatcher
from holdfast.schema import events
from holdfast.schema.exits import describe_exit
from holdfast.schema.shell_text import shell_quote
from holdfast.schema.verdicts import Outcome
from holdfast.storage.journal import Entry
from holdfast.storage.redact import Redactor, redact_entries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.diagnosis.run_state import AttemptState
    from holdfast.importers.base import Reading
    from holdfast.schema.verdicts import Finding, Verdict

FATAL_FOUND = 3
NOT_SET = ("", "~", "null", "none")
MAX_JUDGED_EACH = 1000
"""This many events of each kind are judged one by one; after that, every 32nd and the last."""
JUDGED_EVERY = 32
MIN_VALUES = 3
"""Fewer values than this do not show a trend."""


@dataclass(frozen=True)
class Diagnosis:
    path: str
    reading: Reading
    state: RunState
    verdict: Verdict | None
    """None if the run is still active or nothing was run."""
    explanation: Explanation
    facts: list[str]
    """What the record shows in addition to findings: the best epoch, how it ended."""
    exit_status: int


def diagnose(path: Path | None, *, exit_code: int | None = None) -> Diagnosis:
    """Diagnose the record at a path, or on standard input if the path is None."""
    check_exit_code(exit_code)
    lines = OutputMatcher(output_patterns.needles(), output_patterns.rules_matching)
    reading = detect.read(path, exit_code=exit_code, lines=lines)
    state = _judge(reading, _read_settings_event(path))
    result = _reach_verdict(reading, state)
    if result is not None:
        ended = events.RunEnded(
            at=state.last_at,
            verdict=result.outcome.value,
            reason=result.reason,
            proofs=result.proofs,
            exit_status=result.exit_status,
        )
        state.fold(Entry(ended, state.attempt.number))
    name = str(path) if path is not None else "-"
    return Diagnosis(
        path=name,
        reading=reading,
        state=state,
        verdict=result,
        explanation=_explain(reading, state, result, name),
        facts=_list_facts(reading, state),
        exit_status=_exit_status(state),
    )


# --- from entries to findings -----------------------------------------------------------------------------------------


def _read_settings_event(path: Path | None) -> events.Settings | None:
    """Return the device in the settings that a framework saved: advice about devices does not apply to the CPU."""
    if path is None:
        return None
    folder = path if path.is_dir() else path.parent
    for name in [importer.settings_file for importer in framework_importers() if importer.settings_file]:
        device = read_settings(folder / name, []).get("device", "")
        if device.lower() not in NOT_SET:
            return events.Settings(at=0.0, source=name, values={"device": device})
    return None


def _judge(reading: Reading, settings: events.Settings | None) -> RunState:
    state = RunState()
    engine = Engine(state, [rule for rule in all_rules() if reading.is_holdfast_journal or rule.kind != "watching"])
    invalid = 0
    judge = _SampledJudge(engine, samples=not reading.is_holdfast_journal)
    for entry in redact_entries(reading.entries, Redactor()):
        try:
            judge.take(entry)
        except Exception:  # noqa: BLE001 - records are not trusted: an invalid entry must not hide the others
            invalid += 1
        if settings is not None and not reading.is_holdfast_journal and isinstance(entry.event, events.AttemptStarted):
            _take(engine, Entry(settings, entry.event.attempt, 0))
    if invalid:
        reading.notes.append(f"{invalid} entries are invalid and were left out.")
    return state


class _SampledJudge:
    """Runs the rules after each of the first events of a kind, then after some, and at the end. Each evaluation costs as much as
    the whole history that it reads, which is stored downsampled anyway.
    """

    def __init__(self, engine: Engine, *, samples: bool) -> None:
        self._engine = engine
        self._samples = samples
        self._counts: dict[type[events.Event], int] = {}
        self._pending: dict[type[events.Event], None] = {}

    def take(self, entry: Entry) -> None:
        kind = type(entry.event)
        if isinstance(entry.event, events.AttemptEnded):
            for other in self._pending:
                _note(self._engine, entry.event.at, self._engine.judge(other))
            self._pending.clear()
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        asking = not self._samples or count <= MAX_JUDGED_EACH or count % JUDGED_EVERY == 0
        if asking:
            self._pending.pop(kind, None)
        else:
            self._pending[kind] = None
        _take(self._engine, entry, asking=asking)


def _take(engine: Engine, entry: Entry, *, asking: bool = True) -> None:
    _note(engine, entry.event.at, engine.take(entry, evaluate_rules=asking))


def _note(engine: Engine, at: float, findings: Iterator[Finding]) -> None:
    for finding in list(findings):
        step = finding.step or None  # a record without steps has no step 0
        made = events.FindingMade(at=at, finding=msgspec.structs.replace(finding, step=step))
        _take(engine, Entry(made, engine.state.attempt.number))


# --- verdict ----------------------------------------------------------------------------------------------------------


def _reach_verdict(reading: Reading, state: RunState) -> Verdict | None:
    if not state.attempts or state.attempt.ended is None or not reading.is_finished:
        return None
    if reading.is_holdfast_journal:
        return verdict(state)
    result = verdict(state)
    end = reading.end
    if end is not None and not end.is_known and result.outcome is Outcome.FAILED:
        unknown = "the record does not show how the training ended, or whether it has ended"
        shown = [proof.detail for proof in result.proofs if proof.positive and proof.answer == "holds"]
        reason = "; ".join([unknown, *shown])
        status = EXIT_STATUS[Outcome.UNPROVEN]
        result = msgspec.structs.replace(result, outcome=Outcome.UNPROVEN, reason=reason, exit_status=status)
    return _drop_probe_reason(result, state)


def _drop_probe_reason(result: Verdict, state: RunState) -> Verdict:
    """Remove the reason why the probe is absent: no probe is expected in such a record."""
    why, _ = why_unseen(state.attempt)
    proofs = [msgspec.structs.replace(proof, detail=proof.detail.replace(f" ({why})", "")) for proof in result.proofs]
    return msgspec.structs.replace(result, reason=result.reason.replace(f" ({why})", ""), proofs=proofs)


def _exit_status(state: RunState) -> int:
    """Return 3 if a fatal finding stands at the end."""
    if not state.attempts:
        return 0
    rules = by_id()
    fatal = [
        rules[found.rule].kind for found in state.attempt.findings if found.severity == "fatal" and found.rule in rules
    ]
    has_other_fatal = any(kind not in ("learning", "proof") for kind in fatal)
    return FATAL_FOUND if has_other_fatal or find_learning_failure(state) is not None else 0


# --- explanation ------------------------------------------------------------------------------------------------------


def _explain(reading: Reading, state: RunState, result: Verdict | None, path: str) -> Explanation:
    if not state.attempts:
        story = [f"{reading.name} is {reading.what}: nothing has run, so there is nothing to judge."]
        return Explanation([*story, *reading.notes], None, "unknown", [], [], [])
    explanation = explain(state, reading.reference)
    if reading.is_holdfast_journal:
        return explanation
    steps = _next_steps(reading, path, explanation.next_steps, result)
    story = [_summarize(reading, state), *explanation.story[1:]]
    if steps and not explanation.next_steps:
        story.append(f"Next: {steps[0].text}.")
    return replace(explanation, story=story, unknown=_list_unknown(reading, state, explanation), next_steps=steps)


def _summarize(reading: Reading, state: RunState) -> str:
    attempt = state.attempt
    progress = f"the training reached {reading.position}" if reading.position else "how far it got is not recorded"
    return f"{reading.name} is {reading.what}; {progress}, and {_describe_end(reading, attempt)}."


def _describe_end(reading: Reading, attempt: AttemptState) -> str:
    end, ended = reading.end, attempt.ended
    if end is None or ended is None:
        return "it has not ended"
    if not end.is_known:
        return "how it ended is not recorded"
    if end.basis != "exit code" and not end.finished and not ended.signal:
        return "it failed with an error"
    return f"it {describe_exit(ended.code, ended.signal)}"


def _list_unknown(reading: Reading, state: RunState, explanation: Explanation) -> list[str]:
    found = list(explanation.unknown)
    end = reading.end
    if end is not None and end.basis == "planned work":
        found.insert(
            0,
            f"Its exit code. The training is assumed to have finished, based on {end.how}. If it crashed, pass --exit-code N.",
        )
    metrics = state.attempt.metrics
    tracked = [len(track.points) for name, track in metrics.tracks.items() if is_loss(name)]
    if tracked and max(tracked) < MIN_VALUES <= len(metrics.history):
        found.append(
            f"How the losses developed: they are known for {max(tracked)} of {len(metrics.history)} epochs, too few to detect a decrease "
            "or overfitting. The complete results.csv has them."
        )
    return found


def _next_steps(reading: Reading, path: str, steps: list[NextStep], result: Verdict | None) -> list[NextStep]:
    ordered = list(steps)
    if result is not None and result.outcome is Outcome.NOT_LEARNED:
        return ordered
    if reading.resume_hint is not None:
        ordered.insert(min(1, len(ordered)), NextStep(reading.resume_hint.text, reading.resume_hint.command))
    if reading.end is not None and not reading.end.is_known:
        command = f"holdfast diagnose {shell_quote(path)} --exit-code N"
        ordered += [
            NextStep(
                "run it with Holdfast, which records the signal, the last output and memory", "holdfast run -- COMMAND"
            ),
            NextStep("or get the exit code (`echo $?` right after the training) and pass it to diagnose", command),
        ]
        if reading.has_log:
            advice = "to find the cause, change one thing at a time, and repeat each run more than once"
            ordered.append(NextStep(advice))
    return ordered


def _list_facts(reading: Reading, state: RunState) -> list[str]:
    if not state.attempts:
        return []
    found = []
    best = best_of(state.validated)
    if best is not None and math.isfinite(best.value):
        found.append(f"Best epoch: {best.epoch}, with {best.name} {best.value:.4g}.")
    if reading.end is not None and reading.end.is_known:
        found.append(f"How it ended is known from {reading.end.how}.")
    return found
