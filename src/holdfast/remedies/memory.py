"""Remedies for memory that runs out, in addition to those for the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MIN_IMAGE = 320
STRIDE = 32
TWO_STRIDES = 64
"""With smaller images, batch normalization may get only a single value."""


def _fewer_workers(context: RemedyContext) -> Remedy | None:
    if context.workers <= 2:
        return None
    return remedy(
        f"Using 2 data loader workers instead of {context.workers}: each worker has its own prefetched batches and its own "
        "copy of the dataset's Python lists.",
        context.change("workers", 2, why="each worker uses its own memory", costs="data loading may be slower"),
    )


FEWER_WORKERS = RemedyStep(
    "fewer-workers",
    "Use 2 data loader workers. Each worker keeps its own prefetched batches. It also gradually gets its own copy of the dataset's "
    "lists (copy-on-write).",
    "data loading may be slower",
    _fewer_workers,
)


def smaller_image(size: int, began: int) -> int | None:
    """Return about 0.8 of the size, as a multiple of the stride; None at the minimum.

    The minimum is 320, or half of the original size if that was 320 or less.
    """
    minimum = MIN_IMAGE if began > MIN_IMAGE else max(TWO_STRIDES, began // 2)
    smaller = max(round(0.8 * size / STRIDE) * STRIDE, minimum)
    return smaller if smaller < size else None


def _smaller_image(context: RemedyContext) -> Remedy | None:
    size, began = context.number("imgsz"), context.original_value("imgsz")
    if size is None or not isinstance(began, int):
        return None
    smaller = smaller_image(int(size), began)
    if smaller is None:
        return None
    saved = 1 - (smaller / size) ** 2
    return remedy(
        f"Using images of {smaller} pixels instead of {size:g}: about {saved:.0%} less memory for activations.",
        context.change(
            "imgsz", smaller, why="activations need less memory", costs="lower accuracy, mostly for small objects"
        ),
    )


SMALLER_IMAGE = RemedyStep(
    "smaller-image",
    "Reduce the image size to about 80%, rounded to a multiple of 32 (640, 512, 416, 320). The minimum is 320, or half of "
    "the original size if that was 320 or less.",
    "lower accuracy, mostly for small objects",
    _smaller_image,
)
