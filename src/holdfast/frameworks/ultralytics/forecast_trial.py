"""A short run that all forecasts of an Ultralytics run share. The first check makes it, within its time limit.

The short run uses the stage of a plan with the most pixels per batch. An Ultralytics command (`yolo detect train ...`) is a plan with
one stage.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics import data_set
from holdfast.frameworks.ultralytics.command import parse_command
from holdfast.frameworks.ultralytics.cost_estimate import ImageCounts, find_largest_stage, merge_settings
from holdfast.frameworks.ultralytics.short_run import EPOCHS, FULL, make_request, measure
from holdfast.preflight.checks.check import NotChecked
from holdfast.schema.errors import HoldfastError
from holdfast.schema.plan import Plan, to_toml
from holdfast.storage.safe_files import is_file
from holdfast.supervisor.stage_command import stage_plan, stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.frameworks.ultralytics.data_set import DataSet
    from holdfast.frameworks.ultralytics.short_run import Measurement
    from holdfast.preflight.checks.check import CheckContext

SECONDS = 200.0
"""For the first check."""
RESERVED_S = 12.0
MIN_RATIO = 5
"""A run must be at least this many times as long as the short run: a shorter one gives the answer itself, equally soon."""
RESUMING = frozenset(("resume", "save_dir", "cfg"))
"""A short run with one of these settings would write to the folder of the resumed run, or train something else."""

_lock = threading.Lock()
_short_runs: dict[str, ShortRun] = {}


@dataclass(frozen=True)
class ShortRun:
    plan: Plan
    """The whole plan."""
    stage: Plan
    """The stage that was run, as a separate plan."""
    measured: Measurement
    counted: tuple[ImageCounts, ...]
    """Images of each stage."""
    unpacked: int = 0
    """Bytes of all uncompressed images; 0 unless cache = "disk"."""

    @property
    def settings(self) -> dict[str, Any]:
        return merge_settings(self.plan, stages_of(self.plan)[find_largest_stage(self.plan)])

    @property
    def images(self) -> ImageCounts:
        return self.counted[find_largest_stage(self.plan)]


def get_short_run(context: CheckContext) -> ShortRun:
    """Return the short run. Raises NotChecked if there is nothing to run, or if the short run failed."""
    found = get_short_run_or_failure(context)
    if found.measured.failed:
        raise NotChecked(f"the short run failed: {found.measured.failed}")
    return found


def get_short_run_or_failure(context: CheckContext) -> ShortRun:
    """Return the short run, even if it failed: `measured.failed` is the reason. Raises NotChecked if there is nothing to run."""
    if isinstance(context.short_run, ShortRun):
        return context.short_run
    plan = get_ultralytics_plan(context)
    if plan is None:
        raise NotChecked("this is not an Ultralytics command or plan: see forecast-pace")
    with _lock:
        key = f"{to_toml(plan)}\n{context.device}"
        if key not in _short_runs:
            _short_runs.clear()
            _short_runs[key] = _make_short_run(context, plan)
        return _short_runs[key]


def get_ultralytics_plan(context: CheckContext) -> Plan | None:
    """Return the plan, or an Ultralytics command converted to a plan; None for other commands."""
    if context.plan is not None:
        return context.plan if context.plan.trainer == "ultralytics" else None
    settings = parse_command(context.command)
    if settings is None:
        return None
    if not {"data", "model"} <= settings.keys() or RESUMING & settings.keys():
        return None
    python = context.interpreter.executable if context.interpreter is not None else None
    return Plan(cwd=str(context.cwd), trainer="ultralytics", python=python, settings=settings)


def clear() -> None:
    """Make the next check run it again."""
    with _lock:
        _short_runs.clear()


def _make_short_run(context: CheckContext, plan: Plan) -> ShortRun:
    try:
        data = {
            name: data_set.read(context.cwd / name, cwd=context.cwd)
            for name in {str(merge_settings(plan, stage).get("data", "")) for stage in stages_of(plan)}
        }
    except HoldfastError as error:
        raise NotChecked(error.what.splitlines()[0]) from None
    stages = stages_of(plan)
    counted = tuple(count_images(merge_settings(plan, stage), data) for stage in stages)
    planned = sum(
        request.epochs * -(-images.train // request.batch)
        for request, images in zip(
            (make_request(merge_settings(plan, stage)) for stage in stages), counted, strict=True
        )
    )
    if planned < MIN_RATIO * EPOCHS * FULL.batches:
        raise NotChecked(f"the whole run has only {planned} batches, which take little longer than a short run")
    stage = stage_plan(plan, stages[find_largest_stage(plan)])
    seconds = max(1.0, context.seconds_left - min(RESERVED_S, context.seconds_left / 4))
    over: dict[str, Any] = {"device": context.named_device} if context.named_device else {}
    measured = measure(stage, seconds=seconds, notify=lambda what: context.notify(0, None, what), **over)
    on_disk = any(merge_settings(plan, stage).get("cache") == "disk" for stage in stages)
    return ShortRun(plan, stage, measured, counted, sum(map(estimate_unpacked, data.values())) if on_disk else 0)


def count_images(settings: Mapping[str, Any], data: Mapping[str, DataSet]) -> ImageCounts:
    """Count the images of a stage. `fraction` is a share or a number of images, for training only or for each split."""
    splits = data[str(settings.get("data", ""))].splits
    fraction = settings.get("fraction", 1.0)
    shares = list(fraction) if isinstance(fraction, (list, tuple)) else [fraction]
    counts = []
    for split, share in zip(("train", "val"), [*shares, 1.0], strict=False):
        total = len(splits[split])
        counts.append(min(total, share) if isinstance(share, int) and share > 1 else max(1, round(total * share)))
    return ImageCounts(*counts)


def estimate_unpacked(data: DataSet) -> int:
    """Return the bytes of all uncompressed images. A JPEG takes about a tenth of its pixels."""
    images = [*data.splits.get("train", []), *data.splits.get("val", [])]
    sample = [path.stat().st_size for path in images[:: max(1, len(images) // 200)] if is_file(Path(path))]
    return int(10 * len(images) * sum(sample) / len(sample)) if sample else 0
