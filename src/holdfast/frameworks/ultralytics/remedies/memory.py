"""Remedies for memory that runs out: optional caches, shapes that change, and augmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

CLEAR_EVERY = 10
MOSAIC_STEPS = (0.75, 0.5)
MIXUP_STEPS = (0.05, 0.0)


def _nothing_extra(context: RemedyContext) -> Remedy | None:
    if not context.settings.get("cache"):
        return None
    if context.cause == "device-out-of-memory" and context.on_accelerator and not context.shares_memory:
        return None
    why = "it uses memory that the training needs"
    return remedy(
        "Turning off the dataset cache and the plots: neither affects what the model learns.",
        context.change("cache", False, why=why, costs="reading images may be slower"),
        context.change("plots", False, why=why, costs="no Ultralytics plots"),
    )


NOTHING_EXTRA = RemedyStep(
    "nothing-extra",
    "If images are cached, set `cache=False` and `plots=False`. This is skipped if a device ran out of its own memory, as on CUDA.",
    "reading images may be slower; no Ultralytics plots",
    _nothing_extra,
    framework="ultralytics",
)


def _fixed_shapes(context: RemedyContext) -> Remedy | None:
    why = "the driver keeps a compiled graph for each input shape"
    return remedy(
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
    framework="ultralytics",
)


def _clear_cache(context: RemedyContext) -> Remedy | None:
    # This helps the machine only if the device shares its memory.
    helps = context.shares_memory or (context.on_accelerator and context.cause == "driver-memory-bloat")
    if not helps or context.plan.clear_cache.steps or context.steps <= CLEAR_EVERY:
        return None
    return remedy(
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
    framework="ultralytics",
)


def _less_mixup(context: RemedyContext) -> Remedy | None:
    return _step_down(context, "mixup", MIXUP_STEPS)


def _less_mosaic(context: RemedyContext) -> Remedy | None:
    return _step_down(context, "mosaic", MOSAIC_STEPS)


def _step_down(context: RemedyContext, name: str, steps: tuple[float, ...]) -> Remedy | None:
    value = context.number(name)
    lower = next((step for step in steps if value is not None and step < value), None)
    if lower is None:
        return None
    return remedy(
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
    framework="ultralytics",
)
LESS_MOSAIC = RemedyStep(
    "less-mosaic",
    "Reduce `mosaic` to 0.75, then to 0.5, for the same reason as `mixup`.",
    "weaker augmentation: small datasets overfit earlier",
    _less_mosaic,
    framework="ultralytics",
)
