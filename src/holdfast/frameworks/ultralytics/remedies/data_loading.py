"""Remedies for data loading, for the assigner, and for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext


def _cache_on_disk(context: RemedyContext) -> Remedy | None:
    if context.settings.get("cache") not in (False, None):
        return None
    return remedy(
        "Caching decoded images on disk (cache=disk): the training waited for data.",
        context.change(
            "cache",
            "disk",
            why="the training waited for data",
            costs="disk space: decoded images are written next to the originals",
        ),
    )


CACHE_ON_DISK = RemedyStep(
    "cache-on-disk",
    "Set `cache=disk`, so that images are decoded only once.",
    "disk space: decoded images are written next to the originals",
    _cache_on_disk,
    framework="ultralytics",
)


def _assigner_on_cpu(context: RemedyContext) -> Remedy | None:
    if not context.on_accelerator:
        return None
    return remedy(
        "Running only the assigner, which matches boxes with predictions, on the CPU; everything else stays on the device.",
        context.change(
            "assigner",
            "cpu",
            why="the device sometimes computes wrong results in the assigner",
            costs="slightly slower steps",
        ),
    )


ASSIGNER_ON_CPU = RemedyStep(
    "assigner-on-cpu",
    "Run only the assigner, which matches labeled boxes with predictions, on the CPU; everything else stays on the device.",
    "slightly slower steps",
    _assigner_on_cpu,
    framework="ultralytics",
)


def _write_less(context: RemedyContext) -> Remedy | None:
    why = "the disk is filling up"
    every = context.number("save_period")
    return remedy(
        "Writing less: no plots, no periodic checkpoints (best.pt and last.pt are kept), no cache on disk.",
        context.change("plots", False, why=why, costs="no Ultralytics plots"),
        context.change("save_period", -1, why=why, costs="no checkpoints other than best.pt and last.pt")
        if every and every > 0
        else None,
        context.change("cache", False, why=why, costs="slower data loading")
        if context.settings.get("cache") == "disk"
        else None,
    )


WRITE_LESS = RemedyStep(
    "write-less",
    "Set `plots=False` and `save_period=-1`, and turn off `cache=disk`.",
    "no Ultralytics plots, and no checkpoints other than best.pt and last.pt",
    _write_less,
    framework="ultralytics",
)
