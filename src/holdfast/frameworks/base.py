"""What Holdfast asks about a training framework.

`Framework` describes a command of which nothing is known. A framework overrides what it knows better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.schema.errors import CommandNotRunnable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.diagnosis.versions import KnownFault
    from holdfast.importers.base import Importer
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.scratch import Scratch
    from holdfast.preflight.validate_plan import Validation
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.events import Resume
    from holdfast.schema.plan import Plan
    from holdfast.schema.values import Value
    from holdfast.schema.verdicts import Change
    from holdfast.storage.plan.mistakes import Mistake
    from holdfast.storage.plan.toml_lines import KeyPath

WEIGHTS = "{weights}"
"""In a command, the place of the weights of the previous stage."""


class DeviceChoice(NamedTuple):
    device: str | None
    """In the framework's notation; None if no device can be trusted."""
    message: list[str]
    """Why this device was selected, and why each of the others was not."""


class Framework:
    name = "command"
    """The value of `trainer` in a plan."""
    title = "command"
    """The name in messages."""
    builds_command = False
    """Whether a plan may leave the command to Holdfast."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions matter, in addition to torch."""
    programs: tuple[str, ...] = ()
    """Names of its console scripts."""
    environment_prefixes: tuple[str, ...] = ()
    """Environment variables that start like this change how it trains: they are recorded."""
    setting_values: Mapping[str, Value] = {}
    """The settings that `[settings]` of a plan may contain, with their types and defaults."""
    settings_help = ""
    """Where these settings are documented, and which are required: sentences in Markdown."""
    settings_example = ""
    """The settings of a typical plan, in TOML."""
    hints: Mapping[str, str] = {}
    """How to write a piece of advice as settings of this framework: "no-cache" -> "cache=False"."""
    reduced_batch_pattern: str | None = None
    """The output line in which it reports that it reduced the batch size because memory ran out."""
    known_faults: tuple[KnownFault, ...] = ()
    """Bugs of released versions."""
    result_files: tuple[str, ...] = ()
    """Files next to its weights that people look for, for the report."""
    cache_folders: Mapping[str, str] = {}
    """Environment variable -> the default folder that it replaces: a dry run may write there."""
    overrides_settings = False
    """Whether the probe can change settings when the training starts; otherwise they are changed on the command line."""
    validator = ""
    """The end of the path of the module that validates, as in a traceback."""
    is_detector = False
    """Whether it trains detectors: no box is matched with an object in the very first step."""

    @property
    def importer(self) -> Importer | None:
        """How `holdfast diagnose` reads what the framework writes; None if it writes nothing of its own."""
        return None

    # --- recognition and settings --------------------------------------------------------------------------------

    def recognizes(self, command: Sequence[str], imports: Collection[str] = ()) -> bool:
        """Return whether a command, or a script with these imports, trains with this framework."""
        return False

    def parse_command(self, command: Sequence[str]) -> dict[str, Any] | None:
        """Return the settings in a command line of this framework; None if it is not one that trains."""
        return None

    # --- plans ---------------------------------------------------------------------------------------------------

    def check_settings(self, settings: Mapping[str, Any], at: KeyPath, python: str | None) -> Iterator[Mistake]:
        """Yield the settings of a plan that the framework would reject, ignore or misinterpret."""
        yield from ()

    def check_stage(self, settings: Mapping[str, Any], where: Mapping[str, KeyPath], at: KeyPath) -> Iterator[Mistake]:
        """Yield the settings of a stage that do not fit together. `where` is the path of each setting in the file."""
        yield from ()

    def build_stage(
        self, plan: Plan, stage: str, settings: dict[str, Any], command: Sequence[str], weights: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the settings and the command of a stage that starts with these weights."""
        if weights is None and any(WEIGHTS in word for word in command):
            raise CommandNotRunnable(
                f"The command of stage {stage} takes {WEIGHTS}, but no weights of an earlier stage are known.",
                next_step="set where they are saved in the plan: checkpoint = 'GLOB'",
            )
        return settings, [word.replace(WEIGHTS, weights or "") for word in command]

    def find_command(self) -> list[str]:
        """Return the framework's own command as it is installed here. Raises CommandNotRunnable if it is not."""
        raise CommandNotRunnable(
            "This plan has no command.", next_step="set its interpreter in the plan: python = '...'"
        )

    def validate(self, plan: Plan, cwd: Path, result: Validation) -> Mapping[str, float]:
        """Add what prevents the plan from running. Return the bytes that it will write, by purpose."""
        return {"logs and reports": 256 << 20}

    def results_folder(self, plan: Plan, cwd: Path) -> Path:
        """Return the folder that the training writes its results to."""
        return cwd

    # --- a run ---------------------------------------------------------------------------------------------------

    def find_resume_point(self, state: RunState, before: int | None) -> Resume | None:
        """Return the checkpoint that the framework itself resumes from; with `before`, one saved before that step."""
        return None

    def validation_request(self, state: RunState) -> tuple[str, dict[str, Any]] | None:
        """Return the module of the probe that validates the best checkpoint on the CPU, and its request."""
        return None

    def loader_workers(self, settings: Mapping[str, Any], device: str) -> int | None:
        """Return the number of loader workers with these settings; None if it is unknown."""
        workers = settings.get("workers")
        return workers if isinstance(workers, int) and not isinstance(workers, bool) else None

    # --- remedies ------------------------------------------------------------------------------------------------

    def validation_batch(self, settings: Mapping[str, Any]) -> int | None:
        """Return the batch size of validation; None if it is unknown."""
        return settings.get("validation.batch")

    def effective_batch(self, settings: Mapping[str, Any]) -> int | None:
        """Return the number of samples in one update of the weights; None if it is unknown."""
        return None

    def find_lowered_batch(self, attempt: AttemptState) -> int | None:
        """Return the batch size if the framework itself has lowered it during an attempt."""
        return None

    def learning_rate(self, context: RemedyContext) -> tuple[float | None, list[Change | None]]:
        """Return the learning rate, None if it is unknown, and the changes without which the setting would be ignored."""
        return context.number("lr0"), []

    # --- checks before a run -------------------------------------------------------------------------------------

    def can_forecast(self, context: CheckContext) -> bool:
        """Return whether the framework's own checks forecast this run from a short run."""
        return False

    def estimate_disk(self, context: CheckContext) -> tuple[float, Mapping[str, float]] | None:
        """Return the bytes needed to save once, and all that will be written, by purpose; None if that is unknown."""
        return None

    def count_images(self, context: CheckContext) -> int:
        """Return the number of images for training and validation; 0 if it is unknown."""
        return 0

    def dry_run_settings(self, context: CheckContext, root: Path, scratch: Scratch) -> dict[str, Any]:
        """Return settings that keep a dry run short and its output in the folder `root`."""
        return {}

    def choose_device(self, plan: Plan, notify: Callable[[str], None]) -> DeviceChoice | None:
        """Choose the fastest device that computes correctly if the plan leaves it to Holdfast; None if it does not."""
        return None

    def fits(self, plan: Plan) -> tuple[bool, str]:
        """Return whether a stage fits into memory, and a message with the figures."""
        return True, f"not measured: {self.title} does not support short runs"

    def fit(self, plan: Plan, *, as_json: bool) -> int:
        """Print what fits into memory, for `holdfast fit`. Return the exit status."""
        raise UsageError(
            "holdfast fit needs a plan whose command Holdfast builds, and this plan has a command of its own.",
            next_step="write such a plan: holdfast init DATA.yaml",
        )

    def write_plan(self, data: Path | None, *, model: str | None, out: Path, force: bool, as_json: bool) -> None:
        """Write a plan for a dataset and this machine, for `holdfast init`."""
        raise UsageError("Holdfast cannot write a plan for this framework.", next_step="see docs/plans.md")


FRAMEWORK = Framework()
"""That of a command of which nothing is known."""
