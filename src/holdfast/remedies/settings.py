"""Remedies that change nothing but the process, or one setting: loader workers, image size, batch size of validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, remedy, remedy_step

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MAX_WORKERS = 8
MIN_IMAGE = 320
STRIDE = 32
TWO_STRIDES = 64
"""With smaller images, batch normalization may get only a single value."""
REPEATED = "the steps since the last good state are repeated"
SLOWER_LOADING = "data loading may be slower"
LESS_ACCURATE = "lower accuracy, mostly for small objects"


@remedy_step(REPEATED)
def fresh_process(context: RemedyContext) -> Remedy | None:
    """Resume from the last good state without changes: memory that accumulated in the old process is free again. This is used
    each time that a state was saved and the attempt got further than all earlier ones.
    """
    # Without a saved state and progress, memory would fill up again in the same way.
    if not context.progressed or not context.kept:
        return None
    return Remedy(
        "Using a new process, without other changes: memory that accumulated in the old process is free again, "
        "and the attempt got further than any before it."
    )


@remedy_step(REPEATED)
def as_it_is(context: RemedyContext) -> Remedy | None:
    """Retry without changes, because the failure may have been random. Training resumes from the last good state, or starts
    over if nothing was saved. This is used once for each finding, if the attempt got further than all earlier ones.
    """
    if not context.progressed or context.was_retried_unchanged():
        return None
    return Remedy("Retrying without changes: the failure may have been random and may not happen again.")


@remedy_step(SLOWER_LOADING)
def no_workers(context: RemedyContext) -> Remedy | None:
    """Set `workers=0`, so that data is loaded without forked processes. Some frameworks always do this on a CPU and on MPS."""
    if not context.workers:
        return None
    return remedy(
        "Using no data loader workers (workers=0): the training process loads its data itself, without forked processes.",
        context.change("workers", 0, why="a loader worker may have failed", costs=SLOWER_LOADING),
    )


@remedy_step(SLOWER_LOADING)
def fewer_workers(context: RemedyContext) -> Remedy | None:
    """Use 2 data loader workers. Each worker keeps its own prefetched batches. It also gradually gets its own copy of the
    dataset's lists (copy-on-write).
    """
    if context.workers <= 2:
        return None
    return remedy(
        f"Using 2 data loader workers instead of {context.workers}: each worker has its own prefetched batches and its own "
        "copy of the dataset's Python lists.",
        context.change("workers", 2, why="each worker uses its own memory", costs=SLOWER_LOADING),
    )


@remedy_step("memory for each worker")
def more_workers(context: RemedyContext) -> Remedy | None:
    """Double the number of data loader workers, up to 8."""
    if "workers" not in context.settings or context.workers >= MAX_WORKERS:
        return None
    more = min(MAX_WORKERS, max(2, 2 * context.workers))
    if context.framework.loader_workers({**context.settings, "workers": more}, context.device) != more:
        return None  # the framework ignores the setting on this device
    return remedy(
        f"Using {more} data loader workers instead of {context.workers}: the training waited for data.",
        context.change("workers", more, why="the training waited for data", costs="memory for each worker"),
    )


def shrink_image(size: int, began: int) -> int | None:
    """Return about 0.8 of the size, as a multiple of the stride; None at the minimum."""
    minimum = MIN_IMAGE if began > MIN_IMAGE else max(TWO_STRIDES, began // 2)
    smaller = max(round(0.8 * size / STRIDE) * STRIDE, minimum)
    return smaller if smaller < size else None


@remedy_step(LESS_ACCURATE)
def smaller_image(context: RemedyContext) -> Remedy | None:
    """Reduce the image size to about 80%, rounded to a multiple of 32 (640, 512, 416, 320). The minimum is 320, or half of
    the original size if that was 320 or less.
    """
    size, began = context.number("imgsz"), context.original_value("imgsz")
    smaller = shrink_image(int(size), began) if size is not None and isinstance(began, int) else None
    if size is None or smaller is None:
        return None
    return remedy(
        f"Using images of {smaller} pixels instead of {size:g}: about {1 - (smaller / size) ** 2:.0%} less memory for activations.",
        context.change("imgsz", smaller, why="activations need less memory", costs=LESS_ACCURATE),
    )


@remedy_step("slower validation; padding can change the last digits of the metrics")
def validation_batch(context: RemedyContext) -> Remedy | None:
    """Divide the validation batch size by 4. This can be repeated until the batch size is 1."""
    batch = context.validation_batch
    if batch is None or batch <= 1:
        return None
    smaller = max(1, batch // 4)
    why, costs = "validation keeps the predictions of a whole batch", "slower validation"
    return remedy(
        f"Validating {smaller} images at a time instead of {batch}. Padding can change the last digits of the metrics.",
        context.change("validation.batch", smaller, why=why, costs=costs),
    )
