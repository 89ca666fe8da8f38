"""Why some time of a training was slower than the time before it, told apart by what the machine did meanwhile."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.units import MIB, duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.diagnosis.aggregators.timing import Period

SWAPPED = "the machine ran out of memory and swapped"
WAITED = "it waited for data"
"""Causes that something can be changed about: the ladder knows them by these words."""


class Slowdown(NamedTuple):
    """Something that took far longer than it did before."""

    what: str
    took: float
    usual: float
    """Seconds, both for the same amount of work."""
    now: Period
    before: Sequence[Period]
    same_work: bool
    """True where it is known to have been as much work as before: an epoch is, a window of steps need not be."""

    @property
    def more(self) -> float:
        return self.took - self.usual

    @property
    def times(self) -> float:
        return self.took / self.usual


class Cause(NamedTuple):
    name: str
    message: str
    """For the message, a clause."""
    evidence: str
    remedies: tuple[str, ...]


def causes(slow: Slowdown, memory_total: int | None, limits: Mapping[str, float]) -> list[Cause]:
    """The likeliest first; empty where nothing in the record explains it."""
    found = [_swap(slow, memory_total, limits), _data(slow, limits), _load(slow, limits), _pause(slow)]
    return [cause for cause in found if cause is not None]


def _swap(slow: Slowdown, memory_total: int | None, limits: Mapping[str, float]) -> Cause | None:
    now = slow.now
    least = limits["swap_mib"] * MIB
    usual = median(period.swapped_in for period in slow.before) if slow.before else 0.0
    signs = []
    if now.swapped_in >= max(least, 3.0 * usual):
        signs.append(f"{size(now.swapped_in)} were read back from swap")
    if now.swap_grown >= least:
        signs.append(f"what is in swap grew by {size(now.swap_grown)}")
    low = now.least_available
    if low is not None and memory_total and low < limits["available_part"] * memory_total:
        signs.append(f"only {size(low)} of memory were left")
    if not signs:
        return None
    return Cause(
        "swap",
        SWAPPED,
        "; ".join(signs),
        (
            "use a smaller batch with more gradient accumulation, and close other programs",
            "switch off dataset caching (Ultralytics: cache=False)",
            "go on in a fresh process from the last checkpoint, if memory has grown since the start",
        ),
    )


def _data(slow: Slowdown, limits: Mapping[str, float]) -> Cause | None:
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
        WAITED,
        f"waiting for data took {duration(now.data_wait)} of {duration(now.step_seconds)},"
        f" {now.data_wait / now.steps:.3g} s a step against {usual:.3g} s before",
        (
            "use more loader workers, or cache the data on a local disk",
            "look at the disk or network that the data comes from",
        ),
    )


def _load(slow: Slowdown, limits: Mapping[str, float]) -> Cause | None:
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
        f"the training got {own:.2f} processors, {median(own_before):.2f} before;"
        f" the load of others was {others:.1f}, {median(others_before):.1f} before",
        ("find what else runs on this machine (top), and stop or postpone it",),
    )


def _pause(slow: Slowdown) -> Cause | None:
    now = slow.now
    if now.steps < 10 or now.slowest < 0.8 * slow.more:
        return None
    return Cause(
        "pause",
        "one long pause makes up most of it, the other steps were as fast as ever",
        f"the longest of {now.steps} steps took {duration(now.slowest)}",
        ("look at what the training does there: saving, an evaluation of its own, drawing",),
    )
