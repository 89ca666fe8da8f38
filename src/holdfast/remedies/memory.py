"""Rungs for memory that runs out, beside those about the batch: what is held for convenience, then what images cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MIN_IMAGE = 320
STRIDE = 32
TWO_STRIDES = 64
"""Below this Ultralytics' batch normalisation may be left with a single value."""
CLEAR_EVERY = 10
MOSAIC_STEPS = (0.75, 0.5)
MIXUP_STEPS = (0.05, 0.0)


def _nothing_extra(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics or not now.settings.get("cache"):
        return None
    if now.cause == "device-out-of-memory" and now.device == "cuda":
        return None
    why = "it takes memory that the training needs"
    return remedy(
        "nothing-extra",
        "No cached data set and no plots: neither changes what is learned.",
        now.change("cache", False, why=why, costs="time, where reading images is slow"),
        now.change("plots", False, why=why, costs="Ultralytics' own images of the training are not drawn"),
    )


NOTHING_EXTRA = RemedyStep(
    "nothing-extra",
    "`cache=False`, where a cache is used, and `plots=False` with it; not where only the memory of a CUDA device ran out.",
    "time to read images, and Ultralytics' own plots",
    _nothing_extra,
)


def _fewer_workers(now: RemedyContext) -> Remedy | None:
    if now.workers <= 2:
        return None
    return remedy(
        "fewer-workers",
        f"2 loader workers in place of {now.workers}: each holds a copy of the data set's lists and the batches it prepares.",
        now.change("workers", 2, why="each worker holds memory of its own", costs="time, where loading is slow"),
    )


FEWER_WORKERS = RemedyStep(
    "fewer-workers",
    "2 loader workers: each holds a copy of the data set's lists, page by page, and the batches that it prepares.",
    "time, where loading is slow",
    _fewer_workers,
)


def _fixed_shapes(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics:
        return None
    why = "the driver keeps a compiled graph for each shape of input"
    return remedy(
        "fixed-shapes",
        "All batches get one shape: the driver keeps memory for every new one.",
        now.change("multi_scale", 0.0, why=why, costs="less variety of size") if now.number("multi_scale") else None,
        now.change("rect", False, why=why, costs="time: more padding") if now.settings.get("rect") else None,
    )


FIXED_SHAPES = RemedyStep(
    "fixed-shapes",
    "`multi_scale=0` and `rect=False`: a driver that keeps memory for each shape of input meets only one.",
    "less variety of size, more padding",
    _fixed_shapes,
)


def _clear_cache(now: RemedyContext) -> Remedy | None:
    # Only where the device's memory is the machine's own does it help the machine.
    helps = now.device == "mps" or (now.on_accelerator and now.cause == "driver-memory-bloat")
    if not now.ultralytics or not helps or now.plan.clear_cache.steps or now.steps <= CLEAR_EVERY:
        return None
    return remedy(
        "clear-cache",
        f"The device's cache of free memory is given back every {CLEAR_EVERY} steps.",
        now.change(
            "clear_cache.steps",
            CLEAR_EVERY,
            why="the driver holds much more than tensors need",
            costs="time: each asks for it again",
        ),
    )


CLEAR_CACHE = RemedyStep(
    "clear-cache",
    "The device's cache of free memory is given back every 10 steps (Ultralytics does so once an epoch); for the machine's "
    "memory on MPS only.",
    "a few percent of time",
    _clear_cache,
)


def _less_mixup(now: RemedyContext) -> Remedy | None:
    return _step_down(now, "mixup", MIXUP_STEPS)


def _less_mosaic(now: RemedyContext) -> Remedy | None:
    return _step_down(now, "mosaic", MOSAIC_STEPS)


def _step_down(now: RemedyContext, name: str, steps: tuple[float, ...]) -> Remedy | None:
    value = now.number(name) if now.ultralytics else None
    lower = next((step for step in steps if value is not None and step < value), None)
    if lower is None:
        return None
    return remedy(
        f"less-{name}",
        f"{name} {lower:g} in place of {value:g}: fewer boxes in an image, so that matching them with predictions takes less.",
        now.change(
            name, lower, why="fewer boxes in an image", costs="weaker augmentation: small data sets overfit sooner"
        ),
    )


LESS_MIXUP = RemedyStep(
    "less-mixup",
    "`mixup` down to 0.05, then 0: fewer boxes in an image, so that the assigner needs less memory and meets fewer cases.",
    "weaker augmentation",
    _less_mixup,
)
LESS_MOSAIC = RemedyStep(
    "less-mosaic",
    "`mosaic` 1.0, then 0.75, then 0.5: as with mixup.",
    "weaker augmentation: small data sets overfit sooner",
    _less_mosaic,
)


def smaller_image(size: int, began: int) -> int | None:
    """About 0.8 of it, in strides; None below 320, or below half of what it began with where that was less."""
    least = MIN_IMAGE if began > MIN_IMAGE else max(TWO_STRIDES, began // 2)
    smaller = max(round(0.8 * size / STRIDE) * STRIDE, least)
    return smaller if smaller < size else None


def _smaller_image(now: RemedyContext) -> Remedy | None:
    size, began = now.number("imgsz"), now.began_with("imgsz")
    if size is None or not isinstance(began, int):
        return None
    smaller = smaller_image(int(size), began)
    if smaller is None:
        return None
    saved = 1 - (smaller / size) ** 2
    return remedy(
        "smaller-image",
        f"Images of {smaller} pixels in place of {size:g}: about {saved:.0%} less memory for activations.",
        now.change("imgsz", smaller, why="activations take less", costs="accuracy, on small objects most"),
    )


SMALLER_IMAGE = RemedyStep(
    "smaller-image",
    "About 0.8 of the image size, in multiples of 32 (640, 512, 416, 320), not under 320 unless it began there.",
    "accuracy, on small objects most",
    _smaller_image,
)
