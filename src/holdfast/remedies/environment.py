"""Rungs that are a variable in the training's environment, set before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy, whole_remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_HIGH = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
_LOW = "PYTORCH_MPS_LOW_WATERMARK_RATIO"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_SEGMENTS = "expandable_segments:True"


def _fallback(now: RemedyContext) -> Remedy | None:
    if now.device not in ("mps", "") or not (now.on_macos or now.device == "mps"):
        return None
    return remedy(
        "mps-fallback",
        f"{_FALLBACK}=1: the operator that MPS lacks runs on the CPU.",
        now.change(
            f"environment.{_FALLBACK}",
            "1",
            why="MPS has no kernel for an operator",
            costs="time: copies both ways, each step",
        ),
    )


FALLBACK = RemedyStep(
    "mps-fallback",
    f"`{_FALLBACK}=1`: the operator that MPS lacks runs on the CPU.",
    "time: copies both ways in each step that uses it",
    _fallback,
)


def _no_fallback(now: RemedyContext) -> Remedy | None:
    if now.environment.get(_FALLBACK) in (None, "", "0"):
        return None
    return remedy(
        "no-mps-fallback",
        f"{_FALLBACK}=0: operators that change to the CPU in between make this abort likelier.",
        now.change(
            f"environment.{_FALLBACK}",
            "0",
            why="mixing both devices makes this abort likelier",
            costs="an operator that MPS lacks ends the training",
        ),
    )


NO_FALLBACK = RemedyStep(
    "no-mps-fallback",
    f"`{_FALLBACK}=0`, where it was on.",
    "an operator that MPS lacks ends the training",
    _no_fallback,
)


def _both_watermarks(now: RemedyContext) -> Remedy | None:
    high = _ratio(now.environment.get(_HIGH)) or 1.0
    low = round(0.8 * high, 3)
    why = "the low mark must not be above the high one"
    limits = [now.change(f"environment.{name}", f"{value:g}", why=why) for name, value in ((_HIGH, high), (_LOW, low))]
    description = f"Both marks of MPS memory are set, {_HIGH}={high:g} and {_LOW}={low:g}: {why}."
    return remedy("both-watermarks", description, *limits)


BOTH_WATERMARKS = RemedyStep(
    "both-watermarks",
    f"`{_HIGH}` as you set it, and `{_LOW}` at 0.8 of it: taking the limit away would take the protection away.",
    "nothing",
    _both_watermarks,
)


def _cap_watermarks(now: RemedyContext) -> Remedy | None:
    if now.device != "mps" or _HIGH in now.environment:
        return None
    why = "by default torch frees its caches only when more is held than most Macs have"
    costs = "an error in place of swapping, where the training does not fit"
    return whole_remedy(
        "cap-watermarks",
        f"{_HIGH}=1 and {_LOW}=0.8: {why}.",
        now.change(f"environment.{_HIGH}", "1", why=why, costs=costs),
        now.change(f"environment.{_LOW}", "0.8", why=why),
    )


CAP_WATERMARKS = RemedyStep(
    "cap-watermarks",
    f"`{_HIGH}=1` and `{_LOW}=0.8` on MPS: memory is freed before the machine swaps.",
    "an error in place of swapping, where the training does not fit",
    _cap_watermarks,
)


def _ratio(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _expandable_segments(now: RemedyContext) -> Remedy | None:
    points_there = now.finding is not None and any(_SEGMENTS in text for text in now.finding.remedies)
    if not points_there or now.environment.get(_ALLOCATOR):
        return None
    return remedy(
        "expandable-segments",
        f"{_ALLOCATOR}={_SEGMENTS}: much was reserved and unused, as memory had fallen to pieces.",
        now.change(f"environment.{_ALLOCATOR}", _SEGMENTS, why="much was reserved and unused"),
    )


EXPANDABLE_SEGMENTS = RemedyStep(
    "expandable-segments",
    f"`{_ALLOCATOR}={_SEGMENTS}`, where CUDA's own message says that much is reserved and unused.",
    "nothing",
    _expandable_segments,
)


def _one_thread(now: RemedyContext) -> Remedy | None:
    return remedy(
        "one-thread",
        "OMP_NUM_THREADS=1: two OpenMP runtimes in one process get in each other's way when both have threads. "
        "KMP_DUPLICATE_LIB_OK would only hide it.",
        now.change(
            "environment.OMP_NUM_THREADS",
            "1",
            why="two OpenMP runtimes may be at work",
            costs="time: work on the CPU has one thread",
        ),
    )


ONE_THREAD = RemedyStep(
    "one-thread",
    "`OMP_NUM_THREADS=1`, for two OpenMP runtimes in one process. Never `KMP_DUPLICATE_LIB_OK`: it hides the fault, and may give wrong "
    "numbers.",
    "time: work on the CPU has one thread",
    _one_thread,
)
