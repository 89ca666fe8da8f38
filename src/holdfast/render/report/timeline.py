"""The attempts of a run in order: when, which steps, how each ended, and the decision after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.goodput import lost_steps
from holdfast.render.report.text import clean, count
from holdfast.render.text import describe_change, describe_exit, describe_repeated_work, describe_saved
from holdfast.schema.events import INTERRUPTIONS
from holdfast.schema.units import duration
from holdfast.schema.verdicts import Action

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

FIRST_SHOWN, LAST_SHOWN = 2, 6
"""Attempts described in the report; the journal has those in between."""
MAX_DRAWN = 200
MAX_GAP = 0.04
"""Maximum drawn length of a pause, as a share of all attempts: a night between two attempts would hide everything else."""

Tone = Literal["good", "bad", "stopped", "running"]


@dataclass(frozen=True)
class Segment:
    """An attempt on the time bar, in percent of its width."""

    number: int
    tone: Tone
    left: float
    width: float
    start_up: float
    """Percent of this segment before the first step."""
    lost: float
    """Percent of this segment whose work was repeated."""
    text: str


@dataclass(frozen=True)
class AttemptView:
    """The description of an attempt."""

    number: int
    tone: Tone
    steps: str
    took: str
    how: str
    began: str
    why: str
    saved: str
    then: str
    first: float
    """Start and length of its bar, in percent of the run's steps."""
    length: float


@dataclass(frozen=True)
class Timeline:
    segments: tuple[Segment, ...]
    attempts: tuple[AttemptView, ...]
    between: str
    """Which attempts are not shown."""
    count: int
    last_step: int
    total: str


def timeline_of(state: RunState) -> Timeline:
    attempts = state.attempts
    few = len(attempts) <= FIRST_SHOWN + LAST_SHOWN
    shown = attempts if few else [*attempts[:FIRST_SHOWN], *attempts[-LAST_SHOWN:]]
    following = {attempt.number: after for attempt, after in pairwise(attempts)}
    last = max((attempt.last_step for attempt in attempts), default=0)
    return Timeline(
        segments=_segments(state, attempts[-MAX_DRAWN:]) if _length(state) else (),
        attempts=tuple(_view_attempt(state, attempt, following.get(attempt.number), last) for attempt in shown),
        between="" if few else _describe_hidden(shown[FIRST_SHOWN - 1].number + 1, shown[FIRST_SHOWN].number - 1),
        count=len(attempts),
        last_step=last,
        total=duration(_length(state)),
    )


def _describe_hidden(first: int, last: int) -> str:
    what = f"Attempt {first} is" if first == last else f"Attempts {first} to {last} are"
    return f"{what} not shown here; see the journal."


def _describe_exit(attempt: AttemptState) -> str:
    ended = attempt.ended
    if ended is None:
        return "still running, according to the journal"
    cause = ended.rule or ended.stopped_by
    return clean(describe_exit(code=ended.code, signal=ended.signal, stopped_by=cause, planned=ended.planned), 100)


def tone_of(attempt: AttemptState) -> Tone:
    ended = attempt.ended
    if ended is None:
        return "running"
    if ended.planned or ended.stopped_by in (*INTERRUPTIONS, "supervisor gone"):
        return "stopped"
    return "good" if ended.code == 0 and ended.stopped_by is None else "bad"


def _tone(state: RunState, attempt: AttemptState) -> Tone:
    """An attempt that finished without learning counts as bad."""
    learned_nothing = state.ended is not None and state.ended.verdict == "not-learned" and attempt is state.attempt
    return "bad" if learned_nothing and tone_of(attempt) == "good" else tone_of(attempt)


def _seconds(state: RunState, attempt: AttemptState) -> float:
    if attempt.ended is not None:
        return max(attempt.ended.seconds, 0.0)
    return max(state.last_at - attempt.started.at, 0.0)


def _length(state: RunState) -> float:
    begun = state.started.at if state.started is not None else 0.0
    return max(0.0, state.last_at - begun - state.away) if state.attempts else 0.0


def _segments(state: RunState, attempts: list[AttemptState]) -> tuple[Segment, ...]:
    lengths = [_seconds(state, attempt) for attempt in attempts]
    busy = sum(lengths) or 1.0
    gaps = [0.0]
    for (before, after), seconds in zip(pairwise(attempts), lengths, strict=False):
        waited = max(0.0, after.started.at - before.started.at - seconds)
        gaps.append(min(max(waited, busy / 400), MAX_GAP * busy, busy / len(attempts)))
    total = busy + sum(gaps)
    left, segments = 0.0, []
    for n, (attempt, seconds) in enumerate(zip(attempts, lengths, strict=True)):
        left += gaps[n]
        following = attempts[n + 1] if n + 1 < len(attempts) else None
        tone = _tone(state, attempt)
        segments.append(_segment(attempt, following, tone, left / total, seconds, seconds / total))
        left += seconds
    return tuple(segments)


def _segment(
    attempt: AttemptState, following: AttemptState | None, tone: Tone, left: float, seconds: float, width: float
) -> Segment:
    start_up, lost = 0.0 if attempt.epoch else 1.0, 0.0
    if attempt.steps:
        begun = (attempt.first_step_at or attempt.started.at) - attempt.started.at
        start_up = min(1.0, max(0.0, begun / seconds)) if seconds else 0.0
        lost = (1.0 - start_up) * lost_steps(attempt, following) / attempt.steps
    return Segment(
        number=attempt.number,
        tone=tone,
        left=round(100 * left, 2),
        width=round(100 * width, 2),
        start_up=round(100 * start_up, 1),
        lost=round(100 * lost, 1),
        text=f"attempt {attempt.number}: {_steps(attempt)}, {duration(seconds)}, {_describe_exit(attempt)}",
    )


def _view_attempt(state: RunState, attempt: AttemptState, following: AttemptState | None, last: int) -> AttemptView:
    cause = cause_of(attempt)
    finding = attempt.find_finding(cause) if cause is not None else None
    first = (attempt.first_step or 1) - 1
    return AttemptView(
        number=attempt.number,
        tone=_tone(state, attempt),
        steps=_steps(attempt),
        took=duration(attempt.ended.seconds) if attempt.ended is not None and attempt.ended.seconds else "",
        how=_describe_exit(attempt),
        began=_began(attempt),
        why=f"{clean(finding.rule, 60)}: {clean(finding.message, 400)}" if finding is not None else "",
        saved=clean(describe_saved(attempt), 400),
        then=_then(attempt, following),
        first=round(100 * first / last, 2) if last and attempt.steps else 0.0,
        length=round(100 * attempt.steps / last, 2) if last else 0.0,
    )


def _steps(attempt: AttemptState) -> str:
    if not attempt.steps:
        return f"up to epoch {attempt.epoch}" if attempt.epoch else "no steps"
    return f"steps {count(attempt.first_step or 0)} to {count(attempt.last_step)}"


def _began(attempt: AttemptState) -> str:
    resume = attempt.resumed
    if resume is None:
        return ""
    if resume.checkpoint is None:
        return f"started over: {clean(resume.why)}" if resume.why else "started over"
    at = f", step {count(resume.step)}" if resume.step else ""
    return f"resumed from {clean(resume.checkpoint)}{at}"


def _then(attempt: AttemptState, following: AttemptState | None) -> str:
    decision = attempt.decision
    text = ""
    if decision is not None and (decision.action is not Action.STOP or tone_of(attempt) != "good"):
        text = clean(decision.why, 400)
        text = f"no further attempt: {text}" if decision.action is Action.STOP else f"next attempt: {text}"
        if decision.changes:
            text += "; changed: " + "; ".join(clean(describe_change(change), 200) for change in decision.changes)
    return "; ".join(part for part in (text, describe_repeated_work(attempt, following)) if part)
