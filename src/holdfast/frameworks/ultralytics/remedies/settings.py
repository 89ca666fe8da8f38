"""Remedies that change settings of Ultralytics: caches, shapes and augmentation, precision, validation, files on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.remedies import settings
from holdfast.remedies.step import Remedy, remedy, remedy_step

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

CLEAR_EVERY = 10
MOSAIC_STEPS = (0.75, 0.5)
MIXUP_STEPS = (0.05, 0.0)
MAX_BOXES = 100
LESS_OFTEN = 5

NO_PLOTS = "no Ultralytics plots"
SLIGHTLY_SLOWER = "slightly slower steps"
DISK_SPACE = "disk space: decoded images are written next to the originals"
WEAKER = "weaker augmentation: small datasets overfit earlier"
SLOWER_AND_LARGER = "slower, and more memory"
CROWDED = "the metrics are too low if images contain more objects than that"
COARSE = "best.pt is chosen from fewer epochs"
TIME_AT_END = "time at the end of the run"


@remedy_step(DISK_SPACE)
def cache_on_disk(context: RemedyContext) -> Remedy | None:
    """Set `cache=disk`, so that images are decoded only once."""
    if context.settings.get("cache") not in (False, None):
        return None
    return remedy(
        "Caching decoded images on disk (cache=disk): the training waited for data.",
        context.change("cache", "disk", why="the training waited for data", costs=DISK_SPACE),
    )


@remedy_step(SLIGHTLY_SLOWER)
def assigner_on_cpu(context: RemedyContext) -> Remedy | None:
    """Run only the assigner, which matches labeled boxes with predictions, on the CPU; everything else stays on the device."""
    if not context.on_accelerator:
        return None
    why = "the device sometimes computes wrong results in the assigner"
    return remedy(
        "Running only the assigner, which matches boxes with predictions, on the CPU; everything else stays on the device.",
        context.change("assigner", "cpu", why=why, costs=SLIGHTLY_SLOWER),
    )


@remedy_step("no Ultralytics plots, and no checkpoints other than best.pt and last.pt")
def write_less(context: RemedyContext) -> Remedy | None:
    """Set `plots=False` and `save_period=-1`, and turn off `cache=disk`."""
    why = "the disk is filling up"
    changes = [context.change("plots", False, why=why, costs=NO_PLOTS)]
    if (context.number("save_period") or 0) > 0:
        costs = "no checkpoints other than best.pt and last.pt"
        changes.append(context.change("save_period", -1, why=why, costs=costs))
    if context.settings.get("cache") == "disk":
        changes.append(context.change("cache", False, why=why, costs="slower data loading"))
    return remedy(
        "Writing less: no plots, no periodic checkpoints (best.pt and last.pt are kept), no cache on disk.", *changes
    )


@remedy_step("reading images may be slower; no Ultralytics plots")
def nothing_extra(context: RemedyContext) -> Remedy | None:
    """If images are cached, set `cache=False` and `plots=False`. This is skipped if a device ran out of its own memory, as on
    CUDA.
    """
    on_device = context.cause == "device-out-of-memory" and context.on_accelerator and not context.shares_memory
    if on_device or not context.settings.get("cache"):
        return None
    why = "it uses memory that the training needs"
    return remedy(
        "Turning off the dataset cache and the plots: neither affects what the model learns.",
        context.change("cache", False, why=why, costs="reading images may be slower"),
        context.change("plots", False, why=why, costs=NO_PLOTS),
    )


@remedy_step("less variation in scale, more padding")
def fixed_shapes(context: RemedyContext) -> Remedy | None:
    """Set `multi_scale=0` and `rect=False`, so that all batches have the same shape: the driver keeps memory for each new
    shape.
    """
    why = "the driver keeps a compiled graph for each input shape"
    changes = []
    if context.number("multi_scale"):
        changes.append(context.change("multi_scale", 0.0, why=why, costs="less variation in scale"))
    if context.settings.get("rect"):
        changes.append(context.change("rect", False, why=why, costs="slower: more padding"))
    return remedy("Using the same shape for all batches: the driver keeps memory for every new shape.", *changes)


@remedy_step("a few percent slower")
def clear_cache(context: RemedyContext) -> Remedy | None:
    """Release cached device memory every 10 optimizer steps (Ultralytics does this only at the end of an epoch). For findings
    other than `driver-memory-bloat`, this remedy is used only on MPS, where the GPU shares system memory.
    """
    helps = context.shares_memory or (context.on_accelerator and context.cause == "driver-memory-bloat")
    if not helps or context.plan.clear_cache.steps or context.steps <= CLEAR_EVERY:
        return None
    why, costs = "the driver holds much more memory than tensors need", "slower: the memory must be allocated again"
    return remedy(
        f"Releasing cached device memory every {CLEAR_EVERY} steps.",
        context.change("clear_cache.steps", CLEAR_EVERY, why=why, costs=costs),
    )


@remedy_step(WEAKER)
def less_mixup(context: RemedyContext) -> Remedy | None:
    """Reduce `mixup` to 0.05, then to 0. With fewer boxes per image, matching them with predictions needs less memory."""
    return _step_down(context, "mixup", MIXUP_STEPS)


@remedy_step(WEAKER)
def less_mosaic(context: RemedyContext) -> Remedy | None:
    """Reduce `mosaic` to 0.75, then to 0.5, for the same reason as `mixup`."""
    return _step_down(context, "mosaic", MOSAIC_STEPS)


def _step_down(context: RemedyContext, name: str, steps: tuple[float, ...]) -> Remedy | None:
    value = context.number(name)
    lower = next((step for step in steps if value is not None and step < value), None)
    if lower is None:
        return None
    return remedy(
        f"Setting {name} to {lower:g} instead of {value:g}: with fewer boxes per image, matching them with predictions needs less "
        "memory.",
        context.change(name, lower, why="fewer boxes per image", costs=WEAKER),
    )


@remedy_step(SLOWER_AND_LARGER)
def full_precision(context: RemedyContext) -> Remedy | None:
    """Set `amp=False`. This is skipped on a CPU and on MPS, where Ultralytics always trains in full precision."""
    if context.device in ("cpu", "mps", "") or context.settings.get("amp") in (False, "fp32"):
        return None
    return remedy(
        "Training in full precision (amp=False): half precision overflows at 65,504. On a CPU and on MPS, Ultralytics always does this.",
        context.change("amp", False, why="half precision may have overflowed", costs=SLOWER_AND_LARGER),
    )


@remedy_step("none: MPS does not need a scaler")
def without_scaler(context: RemedyContext) -> Remedy | None:
    """Set `amp=False`, if the traceback mentions a gradient scaler. No setting can fix float64 tensors in your own code."""
    if not any("grad_scaler" in line or "GradScaler" in line for line in context.last_lines):
        return None
    return remedy(
        "Setting amp=False: the gradient scaler created the float64 tensor, and MPS does not need a scaler.",
        context.change("amp", False, why="the gradient scaler creates a float64 tensor"),
    )


@remedy_step(NO_PLOTS)
def validation_batch(context: RemedyContext) -> Remedy | None:
    """With Ultralytics, where it is twice the training batch by default, plots are disabled too."""
    smaller = settings.validation_batch.remedy(context)
    if smaller is None or context.cause == "nms-cut-short":
        return smaller  # without plots alone, another attempt would not be worth it
    plots = context.change("plots", False, why="plots are drawn during validation", costs=NO_PLOTS)
    return replace(smaller, changes=[*smaller.changes, plots]) if plots is not None else smaller


@remedy_step(CROWDED)
def validation_boxes(context: RemedyContext) -> Remedy | None:
    """Keep at most 100 boxes per image (`max_det`) in validation."""
    most = context.plan.validation.max_det or context.number("max_det") or 300
    if most <= MAX_BOXES:
        return None
    why = "the boxes of all images are kept until they are scored"
    return remedy(
        f"Keeping at most {MAX_BOXES} boxes per image in validation instead of {most:g}.",
        context.change("validation.max_det", MAX_BOXES, why=why, costs=CROWDED),
    )


@remedy_step(COARSE)
def validation_less_often(context: RemedyContext) -> Remedy | None:
    """Validate every 5 epochs and after the last epoch."""
    if context.plan.validation.every >= LESS_OFTEN:
        return None
    return remedy(
        f"Validating every {LESS_OFTEN} epochs and after the last epoch.",
        context.change("validation.every", LESS_OFTEN, why="memory usage peaks during each validation", costs=COARSE),
    )


@remedy_step(TIME_AT_END)
def validation_on_cpu(context: RemedyContext) -> Remedy | None:
    """Validate best.pt once more on the CPU at the end."""
    why = "two validations of the same checkpoint disagree"
    return remedy(
        "Validating best.pt once more on the CPU at the end: rely on these metrics.",
        context.change("validation.on_cpu", "always", why=why, costs=TIME_AT_END),
    )
