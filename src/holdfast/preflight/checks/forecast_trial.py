"""One short trial for all checks that foretell what Ultralytics will need: the first of them makes it, within its time.

What is tried is the largest stage of a plan; a command of Ultralytics' own (`yolo detect train ...`) is a plan of one stage.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.preflight import yolo_data
from holdfast.preflight.checks.check import NotChecked
from holdfast.preflight.checks.context import parse_value
from holdfast.preflight.cost_estimate import Counted, find_largest_stage, settings_of
from holdfast.preflight.short_run import EPOCHS, FULL, make_request, measure
from holdfast.schema.errors import HoldfastError
from holdfast.schema.plan import Plan, to_toml
from holdfast.storage.safe_files import is_file
from holdfast.supervisor.stage_command import stage_plan, stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.short_run import Measurement
    from holdfast.preflight.yolo_data import DataSet

SECONDS = 200.0
"""For the check that comes first."""
RESERVED_S = 12.0
WORTH = 5
"""Times as long as a trial: a training that is shorter tells by itself, and as soon."""
OF_AN_EARLIER_RUN = frozenset(("resume", "save_dir", "cfg"))
"""A trial of such a command would write to the folder of the run that it goes on with, or train something else."""
TASKS = ("detect", "segment", "classify", "pose", "obb")
OUT_OF_MEMORY = (
    "out of memory",
    "of memory were left",
    "sigkill",
    "bad_alloc",
    "cannot allocate",
    "not enough memory",
)

_lock = threading.Lock()
_made: dict[str, ShortRun] = {}


@dataclass(frozen=True)
class ShortRun:
    plan: Plan
    """All of it."""
    stage: Plan
    """The stage that was tried, as a plan of its own."""
    measured: Measurement
    counted: tuple[Counted, ...]
    """Images of each stage."""
    unpacked: int = 0
    """Bytes of all images, unpacked beside them; 0 unless that is asked for."""

    @property
    def settings(self) -> dict[str, Any]:
        return settings_of(self.plan, stages_of(self.plan)[find_largest_stage(self.plan)])

    @property
    def images(self) -> Counted:
        return self.counted[find_largest_stage(self.plan)]


def get_short_run(context: CheckContext) -> ShortRun:
    """Raises NotChecked where there is nothing to try, or where the trial did not run."""
    found = get_short_run_or_failure(context)
    if found.measured.failed:
        raise NotChecked(f"a short trial did not run: {found.measured.failed}")
    return found


def get_short_run_or_failure(context: CheckContext) -> ShortRun:
    """Also where the trial did not run: `measured.failed` says why."""
    if context.short_run is not None:
        return context.short_run
    plan = get_ultralytics_plan(context)
    if plan is None:
        raise NotChecked("it is no training of Ultralytics: forecast-pace tells what can be told")
    with _lock:
        key = f"{to_toml(plan)}\n{context.device}"
        if key not in _made:
            _made.clear()
            _made[key] = _try(context, plan)
        return _made[key]


def get_ultralytics_plan(context: CheckContext) -> Plan | None:
    """The plan, or the command as one, where Ultralytics trains by its own command line."""
    if context.plan is not None:
        return context.plan if context.plan.trainer == "ultralytics" else None
    words = list(context.command)
    at = next((n for n, word in enumerate(words[:4]) if Path(word).name in ("yolo", "ultralytics")), None)
    if at is None or ("train" not in words[at:] and "mode=train" not in words[at:]):
        return None
    settings = {
        name: parse_value(value) for name, given, value in (word.partition("=") for word in words[at + 1 :]) if given
    }
    settings.pop("mode", None)
    settings.setdefault("task", next((word for word in words[at + 1 :] if word in TASKS), task_of(settings)))
    settings = {name: value for name, value in settings.items() if value is not None}
    if not {"data", "model"} <= settings.keys() or OF_AN_EARLIER_RUN & settings.keys():
        return None
    python = context.interpreter.executable if context.interpreter is not None else None
    return Plan(cwd=str(context.cwd), trainer="ultralytics", python=python, settings=settings)


def task_of(settings: Mapping[str, Any]) -> str:
    """By the name of the model, as Ultralytics does it: yolo11n-seg.yaml."""
    endings = {"-seg": "segment", "-cls": "classify", "-pose": "pose", "-obb": "obb"}
    name = Path(str(settings.get("model", ""))).stem
    return next((task for ending, task in endings.items() if name.endswith(ending)), "detect")


def forget() -> None:
    """The next check tries again."""
    with _lock:
        _made.clear()


def _try(context: CheckContext, plan: Plan) -> ShortRun:
    try:
        data = {
            name: yolo_data.read(context.cwd / name, cwd=context.cwd)
            for name in {str(settings_of(plan, stage).get("data", "")) for stage in stages_of(plan)}
        }
    except HoldfastError as error:
        raise NotChecked(error.what.splitlines()[0]) from None
    stages = stages_of(plan)
    counted = tuple(count_images(settings_of(plan, stage), data) for stage in stages)
    planned = sum(
        asked.epochs * -(-one.train // asked.batch)
        for asked, one in zip((make_request(settings_of(plan, stage)) for stage in stages), counted, strict=True)
    )
    if planned < WORTH * EPOCHS * FULL.batches:
        raise NotChecked(f"all of it is {planned} batches, which take little longer than a trial would")
    stage = stage_plan(plan, stages[find_largest_stage(plan)])
    seconds = max(1.0, context.seconds_left - min(RESERVED_S, context.seconds_left / 4))
    over: dict[str, Any] = {"device": context.device} if context.device not in (None, "auto") else {}
    measured = measure(stage, seconds=seconds, notify=lambda what: context.notify(0, None, what), **over)
    on_disk = any(settings_of(plan, stage).get("cache") == "disk" for stage in stages)
    return ShortRun(plan, stage, measured, counted, sum(map(unpacked, data.values())) if on_disk else 0)


def count_images(settings: Mapping[str, Any], data: Mapping[str, DataSet]) -> Counted:
    """`fraction` is a share of the images or a number of them, for training alone or for each split."""
    splits = data[str(settings.get("data", ""))].splits
    given = settings.get("fraction", 1.0)
    shares = list(given) if isinstance(given, (list, tuple)) else [given]
    counts = []
    for split, share in zip(("train", "val"), [*shares, 1.0], strict=False):
        there = len(splits[split])
        counts.append(min(there, share) if isinstance(share, int) and share > 1 else max(1, round(there * share)))
    return Counted(*counts)


def unpacked(data: DataSet) -> int:
    """A JPEG takes about a tenth of its pixels."""
    images = [*data.splits.get("train", []), *data.splits.get("val", [])]
    sample = [path.stat().st_size for path in images[:: max(1, len(images) // 200)] if is_file(Path(path))]
    return int(10 * len(images) * sum(sample) / len(sample)) if sample else 0
