"""Remedies that set an environment variable before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.versions import KNOWN_FAULTS
from holdfast.remedies.step import Remedy, all_or_nothing, remedy, remedy_step

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_HIGH = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
_LOW = "PYTORCH_MPS_LOW_WATERMARK_RATIO"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_SEGMENTS = "expandable_segments:True"
_READS_TOO_FAR = next(fault for fault in KNOWN_FAULTS if fault.id == "matmul-reads-too-far")


@remedy_step("slower: the tensors of these operators are copied to the CPU and back")
def mps_fallback(context: RemedyContext) -> Remedy | None:
    """Set `PYTORCH_ENABLE_MPS_FALLBACK=1`, so that operators that MPS does not support run on the CPU."""
    if context.device not in ("mps", "") or not (context.on_macos or context.device == "mps"):
        return None
    why, costs = "MPS does not support an operator", "slower: tensors are copied to the CPU and back"
    return remedy(
        f"Setting {_FALLBACK}=1, so that the operator that MPS does not support runs on the CPU.",
        context.change(f"environment.{_FALLBACK}", "1", why=why, costs=costs),
    )


@remedy_step("an operator that MPS does not support stops training")
def no_mps_fallback(context: RemedyContext) -> Remedy | None:
    """Set `PYTORCH_ENABLE_MPS_FALLBACK=0`, if it was on: operators that fall back to the CPU make the `command-buffer-reused`
    abort more likely.
    """
    if context.environment.get(_FALLBACK) in (None, "", "0"):
        return None
    why = "using both devices makes this abort more likely"
    costs = "an operator that MPS does not support stops training"
    return remedy(
        f"Setting {_FALLBACK}=0: operators that fall back to the CPU make this abort more likely.",
        context.change(f"environment.{_FALLBACK}", "0", why=why, costs=costs),
    )


@remedy_step("none")
def both_watermarks(context: RemedyContext) -> Remedy | None:
    """Keep your value of `PYTORCH_MPS_HIGH_WATERMARK_RATIO` (or set it to 1), and set `PYTORCH_MPS_LOW_WATERMARK_RATIO` to 0.8
    times that value. The limit is not removed, because it protects the machine from running out of memory.
    """
    high = _parse_ratio(context.environment.get(_HIGH)) or 1.0
    low = round(0.8 * high, 3)
    why = "the low watermark must not be above the high one"
    return remedy(
        f"Setting both watermarks of MPS memory, {_HIGH}={high:g} and {_LOW}={low:g}: {why}.",
        context.change(f"environment.{_HIGH}", f"{high:g}", why=why),
        context.change(f"environment.{_LOW}", f"{low:g}", why=why),
    )


def _parse_ratio(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


@remedy_step("an out-of-memory error instead of swapping, if training does not fit into memory")
def cap_watermarks(context: RemedyContext) -> Remedy | None:
    """On MPS, set `PYTORCH_MPS_HIGH_WATERMARK_RATIO=1` and `PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8`, so that torch frees its
    caches before the machine swaps.
    """
    if context.device != "mps" or _HIGH in context.environment:
        return None
    why = "by default, torch frees its caches only when it uses more memory than most Macs have"
    costs = "an out-of-memory error instead of swapping, if training does not fit into memory"
    return all_or_nothing(
        f"Setting {_HIGH}=1 and {_LOW}=0.8: {why}.",
        context.change(f"environment.{_HIGH}", "1", why=why, costs=costs),
        context.change(f"environment.{_LOW}", "0.8", why=why),
    )


@remedy_step("none")
def expandable_segments(context: RemedyContext) -> Remedy | None:
    """Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, if the CUDA error message reports a large amount of reserved
    but unallocated memory.
    """
    if context.named_cause != "fragmented" or context.environment.get(_ALLOCATOR):
        return None
    return remedy(
        f"Setting {_ALLOCATOR}={_SEGMENTS}: a lot of memory was reserved but unused because of fragmentation.",
        context.change(f"environment.{_ALLOCATOR}", _SEGMENTS, why="a lot of memory was reserved but unused"),
    )


@remedy_step("slower: work on the CPU uses one thread")
def one_thread(context: RemedyContext) -> Remedy | None:
    """Set `OMP_NUM_THREADS=1`, because two OpenMP runtimes in one process conflict if both use threads. Holdfast never sets
    `KMP_DUPLICATE_LIB_OK`, which only hides the problem and can cause wrong results.
    """
    why, costs = "two OpenMP runtimes may be loaded", "slower: work on the CPU uses one thread"
    return remedy(
        "Setting OMP_NUM_THREADS=1: two OpenMP runtimes in one process conflict if both use threads. KMP_DUPLICATE_LIB_OK would "
        "only hide the problem.",
        context.change("environment.OMP_NUM_THREADS", "1", why=why, costs=costs),
    )


@remedy_step("possibly slower")
def prefer_metal(context: RemedyContext) -> Remedy | None:
    """On MPS with torch 2.13 or earlier, set `PYTORCH_MPS_PREFER_METAL=1`: in these versions, matrix products read out of
    bounds on M1 and M2 (pytorch#177116).
    """
    affected = _READS_TOO_FAR.torch is not None and context.torch in _READS_TOO_FAR.torch
    if context.device != "mps" or not affected:
        return None
    return remedy(
        f"Setting PYTORCH_MPS_PREFER_METAL=1: {_READS_TOO_FAR.what}.",
        context.change("environment.PYTORCH_MPS_PREFER_METAL", "1", why=_READS_TOO_FAR.what, costs="possibly slower"),
    )
