"""Remedies that change the number of loader workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MAX_WORKERS = 8


def _no_workers(context: RemedyContext) -> Remedy | None:
    if not context.workers:
        return None
    return remedy(
        "Using no data loader workers (workers=0): the training process loads its data itself, without forked processes.",
        context.change("workers", 0, why="a loader worker may have failed", costs="data loading may be slower"),
    )


NO_WORKERS = RemedyStep(
    "no-workers",
    "Set `workers=0`, so that data is loaded without forked processes. Some frameworks always do this on a CPU and on MPS.",
    "data loading may be slower",
    _no_workers,
)


def _more_workers(context: RemedyContext) -> Remedy | None:
    if "workers" not in context.settings or context.workers >= MAX_WORKERS:
        return None
    more = min(MAX_WORKERS, max(2, 2 * context.workers))
    if context.framework.loader_workers({**context.settings, "workers": more}, context.device) != more:
        return None  # the framework ignores the setting on this device
    return remedy(
        f"Using {more} data loader workers instead of {context.workers}: the training waited for data.",
        context.change("workers", more, why="the training waited for data", costs="memory for each worker"),
    )


MORE_WORKERS = RemedyStep(
    "more-workers", "Double the number of data loader workers, up to 8.", "memory for each worker", _more_workers
)
