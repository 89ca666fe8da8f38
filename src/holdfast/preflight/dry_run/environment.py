"""The environment of a dry run: the user's own, with the probe, trackers off, and all output in the scratch folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import frameworks
from holdfast.probe.holdfast_probe import protocol
from holdfast.process.python_command import python_path
from holdfast.storage.safe_files import expand_user
from holdfast.supervisor.child_env import PROBE_FOLDER, overrides_for
from holdfast.supervisor.stage_command import stage_plan, stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.scratch import Scratch

TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "COMET_START_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "TRACKIO_MODE": "disabled",
    "DVCLIVE_TEST": "1",
    "RAY_DISABLE_REPORTING": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Variables that turn trackers off. TensorBoard has no such variable: its files go to the scratch folder."""
CACHES = ("~/.cache", "~/.nv", "~/.triton", "~/.torch", "~/.keras", "~/.config/matplotlib")
"""Cache folders of tools. Their contents, such as downloaded weights, are useful again."""
CACHE_VARIABLES = (
    *(
        "XDG_CACHE_HOME",
        "TORCH_HOME",
        "HF_HOME",
        "HF_DATASETS_CACHE",
        "HF_HUB_CACHE",
        "TRANSFORMERS_CACHE",
        "KERAS_HOME",
    ),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR"),
    "MPLCONFIGDIR",
)
"""Variables that set another location for these folders."""
REPLACEMENTS = {
    "XDG_CACHE_HOME": "~/.cache",
    "CUDA_CACHE_PATH": "~/.nv",
    "TRITON_CACHE_DIR": "~/.triton",
    "MPLCONFIGDIR": "~/.config/matplotlib",
}
"""If such a folder does not exist, it cannot be created in a write-protected home. The variable then names one in the scratch folder."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - folders that programs use by default
SYSTEM = ("/dev", "/dev/shm", "/proc", "/sys")  # noqa: S108 - no user files


@dataclass(frozen=True)
class Writable:
    """The folders that a confined dry run may write to."""

    folders: tuple[str, ...]
    """All of them."""
    caches: tuple[str, ...]
    variables: Mapping[str, str]
    """Environment variables that redirect tools to folders in the scratch folder."""


def find_writable(context: CheckContext, root: Path) -> Writable:
    """Return the scratch folder, the cache folders of tools, and temporary folders that do not contain the training's own folder."""
    own, home = context.cwd.resolve(), expand_user("~")
    of_frameworks = {k: v for framework in frameworks.all_frameworks() for k, v in framework.cache_folders.items()}
    names = (*CACHE_VARIABLES, *of_frameworks)
    configured = [Path(context.environment[name]) for name in names if context.environment.get(name)]
    caches = [
        str(folder)
        for folder in (*map(expand_user, (*CACHES, *of_frameworks.values())), *configured)
        if folder.is_absolute()
        and folder.is_dir()
        and not any(place.is_relative_to(folder.resolve()) for place in (own, home))
    ]
    variables = {}
    for name, usual in {**REPLACEMENTS, **of_frameworks}.items():
        if not context.environment.get(name) and not expand_user(usual).is_dir():
            variables[name] = str(root / "caches" / name.lower())
    temporary = [folder for folder in TEMPORARY if not own.is_relative_to(Path(folder).resolve())]
    return Writable((str(root), *caches, *temporary, *SYSTEM), tuple(caches), variables)


def get_command(context: CheckContext) -> list[str]:
    """Return the command, or the command of the plan's first stage."""
    if context.plan is not None:
        return list(stage_plan(context.plan, stages_of(context.plan)[0]).command)
    return list(context.command)


def build_environment(
    context: CheckContext,
    root: Path,
    attempt: Path,
    request: Mapping[str, Any],
    settings: Mapping[str, Any],
    confined: Writable | None = None,
) -> dict[str, str]:
    """Return the environment variables. `request` tells the probe what to do.

    `settings` override those of the command. `confined` lists the writable folders if writes are restricted.
    """
    files: dict[str, Any] = {"scratch": [str(root)]}
    if confined is not None:
        files |= {"caches": confined.caches, "writable": confined.folders}
    variables = {name: value for name, value in context.environment.items() if not name.startswith("HOLDFAST_")}
    overrides = overrides_for(context.plan) if context.plan is not None else {}
    overrides["settings"] = {**(overrides.get("settings") or {}), **settings}
    temporary = root / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        **variables,
        **TRACKERS_OFF,
        **(confined.variables if confined is not None else {}),
        "MLFLOW_TRACKING_URI": f"file://{root / 'mlruns'}",
        "TMPDIR": str(temporary),
        **python_path(context.environment, str(PROBE_FOLDER)),
        protocol.ATTEMPT: "1",
        protocol.ATTEMPT_DIR: str(attempt),
        protocol.LOCK: str(root / "lock"),
        protocol.PROBE_PATH: str(PROBE_FOLDER),
        protocol.OVERRIDES: json.dumps(overrides),
        protocol.CHECK: json.dumps({"files": files, **request}),
    }


def get_settings(context: CheckContext, root: Path, scratch: Scratch) -> dict[str, Any]:
    """Return the settings that keep the run short. A script may import a framework that its own text does not name."""
    known = context.framework
    used = [known] if known.name != frameworks.COMMAND else list(frameworks.all_frameworks())
    return {name: value for one in used for name, value in one.dry_run_settings(context, root, scratch).items()}
