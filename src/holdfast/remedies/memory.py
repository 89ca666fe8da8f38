"""Remedies for memory that runs out, in addition to those for the batch: optional caches first, then image size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MIN_IMAGE = 320
STRIDE = 32
TWO_STRIDES = 64
"""With smaller images, the batch normalization of Ultralytics may get only a single value."""
CLEAR_EVERY = 10
MOSAIC_STEPS = (0.75, 0.5)
MIXUP_STEPS = (0.05, 0.0)


def _nothing_extra(context: RemedyContext) -> Remedy | None:
    if not context.ultralytics or not context.settings.get("cache"):
        return None
    if context.cause == "device-out-of-memory" and context.device == "cuda":
        return None
    why = "it uses memory that the training needs"
    return remedy(
        "nothing-extra",
        "Turning off the dataset cache and the plots: neither affects what the model learns.",
        context.change("cache", False, why=why, costs="reading images may be slower"),
        context.change("plots", False, why=why, costs="no Ultralytics plots"),
    )


NOTHING_EXTRA = RemedyStep(
    "nothing-extra",
    "If images are cached, set `cache=False` and `plots=False`. This is skipped if only the memory of a CUDA device ran out.",
    "reading images may be slower; no Ultralytics plots",
    _nothing_extra,
)


def _fewer_workers(context: RemedyContext) -> Remedy | None:
    if context.workers <= 2:
        return None
    return remedy(
        "fewer-workers",
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


def _fixed_shapes(context: RemedyContext) -> Remedy | None:
    if not context.ultralytics:
        return None
    why = "the driver keeps a compiled graph for each input shape"
    return remedy(
        "fixed-shapes",
        "Using the same shape for all batches: the driver keeps memory for every new shape.",
        context.change("multi_scale", 0.0, why=why, costs="less variation in scale")
        if context.number("multi_scale")
        else None,
        context.change("rect", False, why=why, costs="slower: more padding") if context.settings.get("rect") else None,
    )


FIXED_SHAPES = RemedyStep(
    "fixed-shapes",
    "Set `multi_scale=0` and `rect=False`, so that all batches have the same shape: the driver keeps memory for each new shape.",
    "less variation in scale, more padding",
    _fixed_shapes,
)


def _clear_cache(context: RemedyContext) -> Remedy | None:
    # This helps the machine only if the device shares its memory.
    helps = context.device == "mps" or (context.on_accelerator and context.cause == "driver-memory-bloat")
    if not context.ultralytics or not helps or context.plan.clear_cache.steps or context.steps <= CLEAR_EVERY:
        return None
    return remedy(
        "clear-cache",
        f"Releasing cached device memory every {CLEAR_EVERY} steps.",
        context.change(
            "clear_cache.steps",
            CLEAR_EVERY,
            why="the driver holds much more memory than tensors need",
            costs="slower: the memory must be allocated again",
        ),
    )


CLEAR_CACHE = RemedyStep(
    "clear-cache",
    "Release cached device memory every 10 optimizer steps (Ultralytics does this only at the end of an epoch). For findings other than "
    "`driver-memory-bloat`, this remedy is used only on MPS, where the GPU shares system memory.",
    "a few percent slower",
    _clear_cache,
)


def _less_mixup(context: RemedyContext) -> Remedy | None:
    return _step_down(context, "mixup", MIXUP_STEPS)


def _less_mosaic(context: RemedyContext) -> Remedy | None:
    return _step_down(context, "mosaic", MOSAIC_STEPS)


def _step_down(context: RemedyContext, name: str, steps: tuple[float, ...]) -> Remedy | None:
    value = context.number(name) if context.ultralytics else None
    lower = next((step for step in steps if value is not None and step < value), None)
    if lower is None:
        return None
    return remedy(
        f"less-{name}",
        f"Setting {name} to {lower:g} instead of {value:g}: with fewer boxes per image, matching them with predictions needs less "
        "memory.",
        context.change(
            name, lower, why="fewer boxes per image", costs="weaker augmentation: small datasets overfit earlier"
        ),
    )


LESS_MIXUP = RemedyStep(
    "less-mixup",
    "Reduce `mixup` to 0.05, then to 0. With fewer boxes per image, matching them with predictions needs less memory.",
    "weaker augmentation: small datasets overfit earlier",
    _less_mixup,
)
LESS_MOSAIC = RemedyStep(
    "less-mosaic",
    "Reduce `mosaic` to 0.75, then to 0.5, for the same reason as `mixup`.",
    "weaker augmentation: small datasets overfit earlier",
    _less_mosaic,
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
        "smaller-image",
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
