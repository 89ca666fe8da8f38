"""The answers for Ultralytics. Each is in a module of this package, which is imported when it is first needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.base import Framework
from holdfast.frameworks.ultralytics.command import PROGRAMS
from holdfast.frameworks.ultralytics.known_faults import KNOWN_FAULTS
from holdfast.frameworks.ultralytics.setting_values import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.frameworks.base import DeviceChoice
    from holdfast.importers.base import Importer
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.scratch import Scratch
    from holdfast.preflight.validate_plan import Validation
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.events import Resume
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Change
    from holdfast.storage.plan.mistakes import Mistake
    from holdfast.storage.plan.toml_lines import KeyPath

_AUTO = {"momentum": 0.9, "warmup_bias_lr": 0.0}
"""The values that are used when Ultralytics chooses the optimizer itself."""


class Ultralytics(Framework):
    name = "ultralytics"
    title = "Ultralytics"
    builds_command = True
    packages = ("ultralytics",)
    programs = PROGRAMS
    environment_prefixes = ("YOLO_",)
    setting_values = SETTINGS
    known_faults = KNOWN_FAULTS
    settings_help = (
        "For trainer `ultralytics`, these are the [Ultralytics settings](https://docs.ultralytics.com/usage/cfg); `model` and "
        "`data` are required."
    )
    settings_example = (
        'model = "yolo11n.yaml"\ndata = "data.yaml"\nepochs = 50\nimgsz = 416\nbatch = 8\ndevice = "auto"'
    )
    hints = {  # noqa: RUF012 - read only
        "no-cache": "cache=False",
        "no-plots": "plots=False",
        "fixed-shapes": "rect=False, no multi_scale",
        "no-workers": "workers=0",
        "few-checkpoints": "save_period=-1",
        "fewer-boxes": "max_det=100",
        "lighter-validation": "plots=False half=True",
        "low-threshold": "conf=0.001",
        "validate-on-cpu": "yolo val model=best.pt device=cpu",
        "validate-in-full-precision": "half=False",
        "batch-plot": "train_batch0.jpg",
        "boxes-not-corrupt": "ultralytics 8.3.204 or newer",
    }
    reduced_batch_pattern = r"out of memory with batch=\d+\. Reducing to batch=(\d+) and retrying"
    result_files = (
        *("results.png", "results.csv", "confusion_matrix.png", "BoxPR_curve.png", "PR_curve.png", "labels.jpg"),
        "args.yaml",
    )
    cache_folders = {"YOLO_CONFIG_DIR": "~/.config/Ultralytics"}  # noqa: RUF012 - read only
    overrides_settings = True
    validator = "ultralytics/engine/validator.py"
    is_detector = True

    @property
    def importer(self) -> Importer:
        from holdfast.frameworks.ultralytics.importer import IMPORTER

        return IMPORTER

    # --- recognition and settings --------------------------------------------------------------------------------

    def recognizes(self, command: Sequence[str], imports: Collection[str] = ()) -> bool:
        from holdfast.frameworks.ultralytics.command import find_program

        return find_program(command) is not None or "ultralytics" in imports

    def parse_command(self, command: Sequence[str]) -> dict[str, Any] | None:
        from holdfast.frameworks.ultralytics.command import parse_command

        return parse_command(command)

    # --- plans ---------------------------------------------------------------------------------------------------

    def check_settings(self, settings: Mapping[str, Any], at: KeyPath, python: str | None) -> Iterator[Mistake]:
        from holdfast.frameworks.ultralytics.install import find_settings
        from holdfast.frameworks.ultralytics.plan_settings import check_settings

        return check_settings(settings, at, lambda: find_settings(python))

    def check_stage(self, settings: Mapping[str, Any], where: Mapping[str, KeyPath], at: KeyPath) -> Iterator[Mistake]:
        from holdfast.frameworks.ultralytics.plan_settings import check_stage

        return check_stage(settings, where, at)

    def build_stage(
        self, plan: Plan, stage: str, settings: dict[str, Any], command: Sequence[str], weights: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        from holdfast.frameworks.ultralytics.command import build_command

        if weights is not None:
            settings["model"] = weights
        # Otherwise Ultralytics saves to the folder in its own settings file, which may belong to another project.
        settings.setdefault("project", str(Path(plan.cwd) / "runs" / str(settings.get("task", "detect"))))
        settings.setdefault("name", "-".join(part for part in (plan.name, stage) if part) or "train")
        return settings, build_command(plan.python, settings)

    def find_command(self) -> list[str]:
        from holdfast.frameworks.ultralytics.command import find_yolo

        return find_yolo(None)

    def validate(self, plan: Plan, cwd: Path, result: Validation) -> Mapping[str, float]:
        from holdfast.frameworks.ultralytics.disk_estimate import estimate_plan_disk
        from holdfast.frameworks.ultralytics.validate import check_plan

        return estimate_plan_disk(plan, cwd, check_plan(plan, cwd, result))

    def results_folder(self, plan: Plan, cwd: Path) -> Path:
        from holdfast.frameworks.ultralytics.validate import find_results_folder

        return find_results_folder(plan, cwd)

    # --- a run ---------------------------------------------------------------------------------------------------

    def find_resume_point(self, state: RunState, before: int | None) -> Resume | None:
        from holdfast.frameworks.ultralytics.resume import find_resume_point

        return find_resume_point(state, before)

    def validation_request(self, state: RunState) -> tuple[str, dict[str, Any]] | None:
        from holdfast.diagnosis.stages import result_of

        settings, best = state.attempt.settings, result_of(state, "mAP50").best
        if best is None or not settings.get("data"):
            return None
        request = {"model": best, **{name: settings.get(name) for name in ("data", "imgsz", "task")}}
        return "holdfast_probe.frameworks.ultralytics.validate_on_cpu", request

    def loader_workers(self, settings: Mapping[str, Any], device: str) -> int | None:
        """On a CPU and on MPS, Ultralytics loads data without workers, regardless of its settings."""
        workers = super().loader_workers(settings, device)
        return 0 if device in ("cpu", "mps") else SETTINGS["workers"].default if workers is None else workers

    # --- remedies ------------------------------------------------------------------------------------------------

    def validation_batch(self, settings: Mapping[str, Any]) -> int | None:
        batch = settings.get("batch")
        return 2 * batch if isinstance(batch, int) else None

    def effective_batch(self, settings: Mapping[str, Any]) -> int | None:
        from holdfast.frameworks.ultralytics.effective_batch import get_update

        update = get_update(settings)
        return update.effective if update is not None else None

    def find_lowered_batch(self, attempt: AttemptState) -> int | None:
        """If the first epoch does not fit, Ultralytics lowers the batch size. It only reports this in its log."""
        line = attempt.printed.get("device-out-of-memory")
        found = re.search(self.reduced_batch_pattern, line.text) if line is not None else None
        return int(found[1]) if found else None

    def learning_rate(self, context: RemedyContext) -> tuple[float | None, list[Change | None]]:
        """With optimizer=auto, Ultralytics ignores lr0: then the values that it chose must be set, if they were observed."""
        if str(context.settings.get("optimizer") or "auto").lower() != "auto":
            return context.number("lr0"), []
        if context.optimizer not in SETTINGS["optimizer"].choices or not context.rate:
            return None, []
        why = "with optimizer=auto, Ultralytics ignores lr0: the optimizer that it chose is set explicitly"
        auto = (context.change(name, value, why=why) for name, value in _AUTO.items())
        optimizer = context.change("optimizer", context.optimizer, why=why)
        return context.rate, [optimizer, *(change for change in auto if change is not None)]

    # --- checks before a run -------------------------------------------------------------------------------------

    def can_forecast(self, context: CheckContext) -> bool:
        from holdfast.frameworks.ultralytics.forecast_trial import get_ultralytics_plan

        return get_ultralytics_plan(context) is not None

    def estimate_disk(self, context: CheckContext) -> tuple[float, Mapping[str, float]] | None:
        from holdfast.frameworks.ultralytics.disk_estimate import estimate_disk

        return estimate_disk(context)

    def count_images(self, context: CheckContext) -> int:
        from holdfast.frameworks.ultralytics.data_set import count_images

        return count_images(context.data, context.cwd) if context.data is not None else 0

    def dry_run_settings(self, context: CheckContext, root: Path, scratch: Scratch) -> dict[str, Any]:
        from holdfast.frameworks.ultralytics.dry_run_settings import make_settings

        return make_settings(context, root, scratch)

    def choose_device(self, plan: Plan, notify: Callable[[str], None]) -> DeviceChoice | None:
        from holdfast.frameworks.ultralytics.device_selection import choose, needs_selection

        return choose(plan, notify=notify) if needs_selection(plan) else None

    def fits(self, plan: Plan) -> tuple[bool, str]:
        from holdfast.frameworks.ultralytics.batch_finder import fits

        return fits(plan)

    def fit(self, plan: Plan, *, as_json: bool) -> int:
        from holdfast.frameworks.ultralytics.batch_finder import find_what_fits
        from holdfast.frameworks.ultralytics.cost_estimate import find_largest_stage
        from holdfast.frameworks.ultralytics.show_fit import print_answer, print_progress
        from holdfast.supervisor.stage_command import stage_plan, stages_of

        stage = stage_plan(plan, stages_of(plan)[find_largest_stage(plan)])
        return print_answer(find_what_fits(stage, print_progress), as_json=as_json)

    def write_plan(self, data: Path | None, *, model: str | None, out: Path, force: bool, as_json: bool) -> None:
        from holdfast.frameworks.ultralytics.draft_plan import MODEL, init
        from holdfast.frameworks.ultralytics.show_draft import show

        show(init(data, model=model or MODEL, out=out, force=force), as_json=as_json)
