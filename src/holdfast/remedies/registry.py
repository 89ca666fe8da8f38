"""The remedies for each finding, in order. Findings that are not listed here cannot be fixed automatically."""

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
LESS_CACHED = (NOTHING_EXTRA, FEWER_WORKERS, CLEAR_CACHE, PEAK_IN_VALIDATION)
HOST_MEMORY = (*DIED_IN_VALIDATION, FRESH_PROCESS, *LESS_CACHED, *LESS_MEMORY)
SWAPPING = (FIXED_SHAPES, *LESS_CACHED, *LESS_MEMORY)
"""A training that is still running is not restarted only to get a new process."""
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
    # learning: the device may be the reason
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
"""Findings that make the state of the attempt unusable: do not resume from it."""
SLOW_DATA = (MORE_WORKERS, CACHE_ON_DISK)


def remedy_steps_for(context: RemedyContext) -> tuple[RemedyStep, ...]:
    if context.cause == "epoch-time-blowup":
        return slow_epoch(context.finding.message if context.finding is not None else "")
    steps = REMEDIES.get(context.cause, ())
    if context.device == "cuda" and HALF_RATE in steps:
        # On CUDA, overflow and learning rates are much more likely reasons for values that are not finite than the device.
        return (*(remedy_step for remedy_step in steps if remedy_step is not NEXT_DEVICE), NEXT_DEVICE)
    return steps


def slow_epoch(message: str) -> tuple[RemedyStep, ...]:
    """Return the remedies by the cause that the finding names. Sleep, other programs and single pauses have none."""
    if SWAPPED in message:
        return SWAPPING
    return SLOW_DATA if WAITED in message else ()
