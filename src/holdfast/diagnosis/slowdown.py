"""Why a period of a training was slower than the periods before it, inferred from what the machine did at the same time."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.hints import hint
from holdfast.schema.units import MIB, duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.diagnosis.aggregators.timing import Period
    from holdfast.diagnosis.run_state import RunState


class Slowdown(NamedTuple):
    """An epoch or a window of steps that took much longer than those before it."""

    what: str
    took: float
    usual: float
    """Seconds, both for the same amount of work."""
    now: Period
    before: Sequence[Period]
    same_work: bool
    """Whether it is known to be the same amount of work as before: true for an epoch, not for a window of steps."""

    @property
    def more(self) -> float:
        return self.took - self.usual

    @property
    def times(self) -> float:
        return self.took / self.usual


class Cause(NamedTuple):
    name: str
    """A code."""
    message: str
    """A clause for the message of the finding."""
    evidence: str
    remedies: tuple[str, ...]


def find_causes(slow: Slowdown, state: RunState, limits: Mapping[str, float]) -> list[Cause]:
    """Return the possible causes, the most likely first; empty if nothing in the record explains the slowdown."""
    found = [
        _check_swap(slow, state, limits),
        _check_data_wait(slow, limits),
        _check_load(slow, limits),
        _check_pause(slow),
    ]
    return [cause for cause in found if cause is not None]


def _check_swap(slow: Slowdown, state: RunState, limits: Mapping[str, float]) -> Cause | None:
    now = slow.now
    least = limits["swap_mib"] * MIB
    usual = median(period.swapped_in for period in slow.before) if slow.before else 0.0
    signs = []
    if now.swapped_in >= max(least, 3.0 * usual):
        signs.append(f"{size(now.swapped_in)} was read back from swap")
    if now.swap_grown >= least:
        signs.append(f"swap usage grew by {size(now.swap_grown)}")
    low, memory_total = now.least_available, state.started.memory_total if state.started is not None else None
    if low is not None and memory_total and low < limits["available_part"] * memory_total:
        signs.append(f"only {size(low)} of memory was available")
    if not signs:
        return None
    return Cause(
        "swap",
        "the machine ran out of memory and swapped",
        "; ".join(signs),
        (
            "use a smaller batch with more gradient accumulation, and close other programs",
            f"disable dataset caching{hint(state, 'no-cache')}",
            "resume from the last checkpoint in a new process, if memory has grown since the start",
        ),
    )


def _check_data_wait(slow: Slowdown, limits: Mapping[str, float]) -> Cause | None:
    now = slow.now
    waits = [period.data_wait / period.steps for period in slow.before if period.steps]
    if not now.steps or not waits or not now.step_seconds:
        return None
    usual = median(waits)
    more = now.data_wait - usual * now.steps
    if more < limits["explains"] * min(slow.more, now.step_seconds):
        return None
    return Cause(
        "data",
        "it waited for data",
        f"waiting for data took {duration(now.data_wait)} of {duration(now.step_seconds)},"
        f" {now.data_wait / now.steps:.3g} s per step compared with {usual:.3g} s before",
        (
            "use more loader workers, or cache the data on a local disk",
            "check the disk or network that the data comes from",
        ),
    )


def _check_load(slow: Slowdown, limits: Mapping[str, float]) -> Cause | None:
    own, others = slow.now.own_load, slow.now.others_load
    own_before = [period.own_load for period in slow.before if period.own_load is not None]
    others_before = [period.others_load for period in slow.before if period.others_load is not None]
    if own is None or others is None or not own_before or not others_before:
        return None
    if own > limits["own_part"] * median(own_before) or others < median(others_before) + limits["others_load"]:
        return None
    return Cause(
        "load",
        "other programs kept the machine busy",
        f"training used {own:.2f} CPU cores on average, compared with {median(own_before):.2f} before;"
        f" the load of other programs was {others:.1f}, compared with {median(others_before):.1f} before",
        ("find out what else is running on this machine (for example with top), and stop or postpone it",),
    )


def _check_pause(slow: Slowdown) -> Cause | None:
    now = slow.now
    if now.steps < 10 or now.slowest < 0.8 * slow.more:
        return None
    return Cause(
        "pause",
        "one long pause accounts for most of it; the other steps were as fast as before",
        f"the longest of {now.steps} steps took {duration(now.slowest)}",
        ("check what the training does at this point: saving, its own evaluation, or plotting",),
    )
