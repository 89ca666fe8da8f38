"""Remedies that set an environment variable before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.versions import KNOWN_FAULTS
from holdfast.remedies.step import Remedy, RemedyStep, all_or_nothing, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_HIGH = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
_LOW = "PYTORCH_MPS_LOW_WATERMARK_RATIO"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_SEGMENTS = "expandable_segments:True"
_READS_TOO_FAR = next(fault for fault in KNOWN_FAULTS if fault.id == "matmul-reads-too-far")


def _fallback(context: RemedyContext) -> Remedy | None:
    if context.device not in ("mps", "") or not (context.on_macos or context.device == "mps"):
        return None
    return remedy(
        f"Setting {_FALLBACK}=1, so that the operator that MPS does not support runs on the CPU.",
        context.change(
            f"environment.{_FALLBACK}",
            "1",
            why="MPS does not support an operator",
            costs="slower: tensors are copied to the CPU and back",
        ),
    )


FALLBACK = RemedyStep(
    "mps-fallback",
    f"Set `{_FALLBACK}=1`, so that operators that MPS does not support run on the CPU.",
    "slower: the tensors of these operators are copied to the CPU and back",
    _fallback,
)


def _no_fallback(context: RemedyContext) -> Remedy | None:
    if context.environment.get(_FALLBACK) in (None, "", "0"):
        return None
    return remedy(
        f"Setting {_FALLBACK}=0: operators that fall back to the CPU make this abort more likely.",
        context.change(
            f"environment.{_FALLBACK}",
            "0",
            why="using both devices makes this abort more likely",
            costs="an operator that MPS does not support stops training",
        ),
    )


NO_FALLBACK = RemedyStep(
    "no-mps-fallback",
    f"Set `{_FALLBACK}=0`, if it was on: operators that fall back to the CPU make the `command-buffer-reused` abort more likely.",
    "an operator that MPS does not support stops training",
    _no_fallback,
)


def _both_watermarks(context: RemedyContext) -> Remedy | None:
    high = _parse_ratio(context.environment.get(_HIGH)) or 1.0
    low = round(0.8 * high, 3)
    why = "the low watermark must not be above the high one"
    limits = [
        context.change(f"environment.{name}", f"{value:g}", why=why) for name, value in ((_HIGH, high), (_LOW, low))
    ]
    description = f"Setting both watermarks of MPS memory, {_HIGH}={high:g} and {_LOW}={low:g}: {why}."
    return remedy(description, *limits)


BOTH_WATERMARKS = RemedyStep(
    "both-watermarks",
    f"Keep your value of `{_HIGH}` (or set it to 1), and set `{_LOW}` to 0.8 times that value. The limit is not removed, because "
    "it protects the machine from running out of memory.",
    "none",
    _both_watermarks,
)


def _cap_watermarks(context: RemedyContext) -> Remedy | None:
    if context.device != "mps" or _HIGH in context.environment:
        return None
    why = "by default, torch frees its caches only when it uses more memory than most Macs have"
    costs = "an out-of-memory error instead of swapping, if training does not fit into memory"
    return all_or_nothing(
        f"Setting {_HIGH}=1 and {_LOW}=0.8: {why}.",
        context.change(f"environment.{_HIGH}", "1", why=why, costs=costs),
        context.change(f"environment.{_LOW}", "0.8", why=why),
    )


CAP_WATERMARKS = RemedyStep(
    "cap-watermarks",
    f"On MPS, set `{_HIGH}=1` and `{_LOW}=0.8`, so that torch frees its caches before the machine swaps.",
    "an out-of-memory error instead of swapping, if training does not fit into memory",
    _cap_watermarks,
)


def _parse_ratio(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _expandable_segments(context: RemedyContext) -> Remedy | None:
    if context.named_cause != "fragmented" or context.environment.get(_ALLOCATOR):
        return None
    return remedy(
        f"Setting {_ALLOCATOR}={_SEGMENTS}: a lot of memory was reserved but unused because of fragmentation.",
        context.change(f"environment.{_ALLOCATOR}", _SEGMENTS, why="a lot of memory was reserved but unused"),
    )


EXPANDABLE_SEGMENTS = RemedyStep(
    "expandable-segments",
    f"Set `{_ALLOCATOR}={_SEGMENTS}`, if the CUDA error message reports a large amount of reserved but unallocated memory.",
    "none",
    _expandable_segments,
)


def _one_thread(context: RemedyContext) -> Remedy | None:
    return remedy(
        "Setting OMP_NUM_THREADS=1: two OpenMP runtimes in one process conflict if both use threads. KMP_DUPLICATE_LIB_OK would "
        "only hide the problem.",
        context.change(
            "environment.OMP_NUM_THREADS",
            "1",
            why="two OpenMP runtimes may be loaded",
            costs="slower: work on the CPU uses one thread",
        ),
    )


ONE_THREAD = RemedyStep(
    "one-thread",
    "Set `OMP_NUM_THREADS=1`, because two OpenMP runtimes in one process conflict if both use threads. Holdfast never sets "
    "`KMP_DUPLICATE_LIB_OK`, which only hides the problem and can cause wrong results.",
    "slower: work on the CPU uses one thread",
    _one_thread,
)


def _prefer_metal(context: RemedyContext) -> Remedy | None:
    affected = _READS_TOO_FAR.torch is not None and context.torch in _READS_TOO_FAR.torch
    if context.device != "mps" or not affected:
        return None
    return remedy(
        f"Setting PYTORCH_MPS_PREFER_METAL=1: {_READS_TOO_FAR.what}.",
        context.change("environment.PYTORCH_MPS_PREFER_METAL", "1", why=_READS_TOO_FAR.what, costs="possibly slower"),
    )


PREFER_METAL = RemedyStep(
    "prefer-metal",
    "On MPS with torch 2.13 or earlier, set `PYTORCH_MPS_PREFER_METAL=1`: in these versions, matrix products read out of bounds on M1 "
    "and M2 (pytorch#177116).",
    "possibly slower",
    _prefer_metal,
)
