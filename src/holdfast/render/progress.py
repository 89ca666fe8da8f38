"""The progress line of a plan: stage, epoch, time left, memory, goodput."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from holdfast.diagnosis.goodput import goodput_of
from holdfast.schema.units import duration, size

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

RECENT = 5
"""Number of epochs used to estimate the time left."""


def progress(state: RunState, head: str, later: float = 0.0) -> str:
    """`later` is the work of the following stages, in epochs of this one."""
    attempt = state.attempt
    parts = [head] if head else []
    if attempt.epoch is not None:
        of = f" of {attempt.planned_epochs}" if attempt.planned_epochs else ""
        parts.append(f"epoch {attempt.epoch}{of}")
    parts += _time_left(state, later)
    parts += [room] if (room := _room(state)) else []
    spent = goodput_of(state)
    if spent.wall_s >= 1.0:
        parts.append(f"{spent.ratio:.0%} useful training time")
    return ", ".join(parts)


def _time_left(state: RunState, later: float) -> list[str]:
    attempt = state.attempt
    each = seconds_an_epoch(state)
    if each is None or attempt.epoch is None or attempt.planned_epochs is None:
        return []
    left = max(0, attempt.planned_epochs - attempt.epoch)
    if later:
        return [f"about {duration(left * each)} left in this stage, {duration((left + later) * each)} in total"]
    return [f"about {duration(left * each)} left" if left else "no epochs left"]


def seconds_an_epoch(state: RunState) -> float | None:
    """Median of the last few epochs, including the time between them."""
    attempt = state.attempt
    gaps = [later.at - earlier.at for each in state.attempts for earlier, later in pairwise(each.pace.epochs)][-RECENT:]
    if not gaps:
        # The first epoch of a resumed attempt may have started in the middle.
        whole = [epoch.seconds for epoch in attempt.pace.epochs] if attempt is state.attempts[0] else []
        gaps = whole[-1:]
    return median(gaps) if gaps else None


def _room(state: RunState) -> str:
    samples = state.attempt.memory.samples
    if not samples:
        return ""
    newest = samples[-1]
    budget = state.started.memory_budget if state.started is not None else None
    whole = budget or newest.rss + newest.available
    return f"memory {size(newest.rss)} of {size(whole)}"
