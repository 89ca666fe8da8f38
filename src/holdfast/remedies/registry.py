"""Which rungs answer which finding, in their order. What is not named here has no remedy but a person's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.slowdown import SWAPPED, WAITED
from holdfast.remedies.batch_size import ACCUMULATE_LESS, BATCH_OF_ONE, MICRO_BATCH
from holdfast.remedies.data_loading import ASSIGNER_ON_CPU, CACHE_ON_DISK, MORE_WORKERS, NO_WORKERS, WRITE_LESS
from holdfast.remedies.device import NEXT_DEVICE
from holdfast.remedies.environment import (
    BOTH_WATERMARKS,
    CAP_WATERMARKS,
    EXPANDABLE_SEGMENTS,
    FALLBACK,
    NO_FALLBACK,
    ONE_THREAD,
)
from holdfast.remedies.memory import (
    CLEAR_CACHE,
    FEWER_WORKERS,
    FIXED_SHAPES,
    LESS_MIXUP,
    LESS_MOSAIC,
    NOTHING_EXTRA,
    SMALLER_IMAGE,
)
from holdfast.remedies.precision import FULL_PRECISION, HALF_RATE, PREFER_METAL, WITHOUT_SCALER
from holdfast.remedies.retry import AS_IT_IS, FRESH_PROCESS
from holdfast.remedies.validation import (
    DIED_IN_VALIDATION,
    PEAK_IN_VALIDATION,
    VALIDATION_BATCH,
    VALIDATION_BOXES,
    VALIDATION_LESS_OFTEN,
    VALIDATION_ON_CPU,
)

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.remedies.step import RemedyStep

LIGHTER_VALIDATION = (VALIDATION_BATCH, VALIDATION_BOXES, VALIDATION_LESS_OFTEN)
LESS_MEMORY = (MICRO_BATCH, LESS_MIXUP, LESS_MOSAIC, SMALLER_IMAGE, BATCH_OF_ONE, NEXT_DEVICE)
LESS_PILES_UP = (NOTHING_EXTRA, FEWER_WORKERS, CLEAR_CACHE, PEAK_IN_VALIDATION)
HOST_MEMORY = (*DIED_IN_VALIDATION, FRESH_PROCESS, *LESS_PILES_UP, *LESS_MEMORY)
SWAPS = (FIXED_SHAPES, *LESS_PILES_UP, *LESS_MEMORY)
"""A training that still lives is not started again for nothing but a fresh process."""
NOT_FINITE = (AS_IT_IS, FULL_PRECISION, NEXT_DEVICE, HALF_RATE)

REMEDIES: dict[str, tuple[RemedyStep, ...]] = {
    # memory
    "killed-out-of-memory": HOST_MEMORY,
    "memory-pressure": HOST_MEMORY,
    "memory-leak": (
        NOTHING_EXTRA,
        FEWER_WORKERS,
        NO_WORKERS,
        FIXED_SHAPES,
        CLEAR_CACHE,
        PEAK_IN_VALIDATION,
        *LESS_MEMORY,
    ),
    "device-out-of-memory": (
        *DIED_IN_VALIDATION,
        EXPANDABLE_SEGMENTS,
        FRESH_PROCESS,
        NOTHING_EXTRA,
        PEAK_IN_VALIDATION,
        *LESS_MEMORY,
    ),
    "driver-memory-bloat": (FIXED_SHAPES, CLEAR_CACHE, CAP_WATERMARKS, FRESH_PROCESS, *LESS_MEMORY),
    "validation-memory-spike": LIGHTER_VALIDATION,
    "disk-filling": (WRITE_LESS,),
    # the device
    "assigner-shape-mismatch": (AS_IT_IS, ASSIGNER_ON_CPU, LESS_MIXUP, LESS_MOSAIC, NEXT_DEVICE),
    "label-count-negative": (AS_IT_IS, NEXT_DEVICE),
    "op-not-implemented": (FALLBACK, NEXT_DEVICE),
    "float64-unsupported": (WITHOUT_SCALER, NEXT_DEVICE),
    "watermark-invalid": (BOTH_WATERMARKS,),
    "fork-after-metal": (NO_WORKERS, NEXT_DEVICE),
    "command-buffer-reused": (NO_FALLBACK, NO_WORKERS, AS_IT_IS, NEXT_DEVICE),
    "command-buffer-failed": (AS_IT_IS, MICRO_BATCH, NEXT_DEVICE),
    "backward-view-incompatible": (NEXT_DEVICE,),
    "crashed-abort": (AS_IT_IS, ONE_THREAD, ACCUMULATE_LESS, NEXT_DEVICE),
    "crashed-segfault": (AS_IT_IS, NO_WORKERS, ONE_THREAD, ACCUMULATE_LESS, NEXT_DEVICE),
    "openmp-duplicate": (AS_IT_IS, ONE_THREAD),
    "step-hang": (NO_WORKERS, AS_IT_IS, NEXT_DEVICE),
    # learning, where the device may be what does not learn
    "loss-all-zero": (NEXT_DEVICE,),
    "loss-component-zero": (NEXT_DEVICE,),
    "loss-constant": (NEXT_DEVICE,),
    "metrics-all-zero": (NEXT_DEVICE,),
    "gradients-zero": (NEXT_DEVICE,),
    "weights-frozen": (NEXT_DEVICE,),
    "gradients-exploding": (PREFER_METAL, NEXT_DEVICE),
    "loss-not-finite": NOT_FINITE,
    "gradients-not-finite": NOT_FINITE,
    "rolled-back-after-nan": NOT_FINITE,
    "loss-diverging": (FULL_PRECISION, PREFER_METAL, NEXT_DEVICE, HALF_RATE),
    # validation
    "nms-cut-short": (VALIDATION_BATCH,),
    "validation-disagrees": (VALIDATION_ON_CPU,),
}
CORRUPTING = frozenset(
    (
        *(
            "loss-all-zero",
            "loss-component-zero",
            "loss-constant",
            "loss-not-finite",
            "loss-diverging",
            "metrics-all-zero",
        ),
        *("gradients-zero", "gradients-not-finite", "gradients-exploding", "weights-frozen", "rolled-back-after-nan"),
        "command-buffer-failed",
    )
)
"""Findings after which the attempt's state is not to be gone on from."""
DATA_IS_LATE = (MORE_WORKERS, CACHE_ON_DISK)


def remedy_steps_for(now: RemedyContext) -> tuple[RemedyStep, ...]:
    if now.cause == "epoch-time-blowup":
        return slow_epoch(now.finding.message if now.finding is not None else "")
    rungs = REMEDIES.get(now.cause, ())
    if now.device == "cuda" and HALF_RATE in rungs:
        # Overflow and rates explain what is not finite on CUDA far better than the device does: it comes last.
        return (*(remedy_step for remedy_step in rungs if remedy_step is not NEXT_DEVICE), NEXT_DEVICE)
    return rungs


def slow_epoch(message: str) -> tuple[RemedyStep, ...]:
    """By its cause, as the finding names it. Sleep, other programs and single pauses leave nothing to change."""
    if SWAPPED in message:
        return SWAPS
    return DATA_IS_LATE if WAITED in message else ()
