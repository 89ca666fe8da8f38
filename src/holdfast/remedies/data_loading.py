"""Rungs about loading data, about the assigner, and about the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MAX_WORKERS = 8


def _no_workers(now: RemedyContext) -> Remedy | None:
    if not now.workers:
        return None
    return remedy(
        "no-workers",
        "No loader workers (workers=0): the training loads its data itself, with no process that was forked.",
        now.change("workers", 0, why="a loader worker may be what failed", costs="time, where loading is slow"),
    )


NO_WORKERS = RemedyStep(
    "no-workers",
    "`workers=0`: no forked process takes part. Ultralytics does so by itself on a CPU and on MPS.",
    "time, where loading is slow",
    _no_workers,
)


def _more_workers(now: RemedyContext) -> Remedy | None:
    if (
        (now.ultralytics and now.device in ("cpu", "mps"))
        or "workers" not in now.settings
        or now.workers >= MAX_WORKERS
    ):
        return None
    more = min(MAX_WORKERS, max(2, 2 * now.workers))
    return remedy(
        "more-workers",
        f"{more} loader workers in place of {now.workers}: the training waited for data.",
        now.change("workers", more, why="it waited for data", costs="memory, for each worker"),
    )


MORE_WORKERS = RemedyStep(
    "more-workers", "Twice the loader workers, up to 8.", "memory, for each worker", _more_workers
)


def _cache_on_disk(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics or now.settings.get("cache") not in (False, None):
        return None
    return remedy(
        "cache-on-disk",
        "Decoded images are kept on the disk (cache=disk): the training waited for data.",
        now.change("cache", "disk", why="it waited for data", costs="disk: decoded images are written beside yours"),
    )


CACHE_ON_DISK = RemedyStep(
    "cache-on-disk",
    "`cache=disk`: images are decoded once.",
    "disk: decoded images are written beside yours",
    _cache_on_disk,
)


def _assigner_on_cpu(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics or not now.on_accelerator:
        return None
    return remedy(
        "assigner-on-cpu",
        "Only the assigner, which matches boxes with predictions, runs on the CPU; everything else stays on the device.",
        now.change(
            "assigner", "cpu", why="the device counts wrongly in it now and then", costs="some time in each step"
        ),
    )


ASSIGNER_ON_CPU = RemedyStep(
    "assigner-on-cpu",
    "Only Ultralytics' assigner runs on the CPU; everything else stays on the device.",
    "some time in each step",
    _assigner_on_cpu,
)


def _write_less(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics:
        return None
    why = "the disk fills"
    every = now.number("save_period")
    return remedy(
        "write-less",
        "Less is written: no plots, no checkpoint of every epoch (best.pt and last.pt stay), no cache on the disk.",
        now.change("plots", False, why=why, costs="Ultralytics' own images of the training are not drawn"),
        now.change("save_period", -1, why=why, costs="no checkpoints between best and last")
        if every and every > 0
        else None,
        now.change("cache", False, why=why, costs="time") if now.settings.get("cache") == "disk" else None,
    )


WRITE_LESS = RemedyStep(
    "write-less",
    "`plots=False`, `save_period=-1`, and no `cache=disk`.",
    "Ultralytics' own plots, and checkpoints between best and last",
    _write_less,
)
