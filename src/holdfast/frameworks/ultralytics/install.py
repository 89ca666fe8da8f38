"""The Ultralytics package of an interpreter, found without importing it: its folder, its settings, its models."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.command import find_yolo
from holdfast.process.python_command import program
from holdfast.process.python_discovery import find_python
from holdfast.schema.errors import CommandNotRunnable
from holdfast.storage.folder import working_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

TIMEOUT_S = 30.0
"""A cold interpreter on a busy disk is slow to start."""
_FIND_FOLDER = (
    "import importlib.util as u; s = u.find_spec('ultralytics'); "
    "print((s.submodule_search_locations or [''])[0] if s else '')"
)
_KEY = re.compile(r"^([a-z]\w*):", re.MULTILINE)


MAX_NAME_CHARS = 255
"""Maximum length of a file name."""


@dataclass(frozen=True)
class UltralyticsInstall:
    folder: Path

    @cached_property
    def settings(self) -> frozenset[str]:
        """Names of the settings of this version; empty if they cannot be read."""
        try:
            return frozenset(_KEY.findall((self.folder / "cfg" / "default.yaml").read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            return frozenset()

    @cached_property
    def models(self) -> frozenset[str]:
        """Names of the model YAML files that it ships, without sizes: yolo11.yaml stands for yolo11n.yaml and so on."""
        return frozenset(path.name for path in (self.folder / "cfg" / "models").rglob("*.yaml"))

    def ships_data(self, name: str) -> bool:
        return any((self.folder / "cfg" / "datasets" / f"{name}{ending}").is_file() for ending in ("", ".yaml"))

    def ships_model(self, name: str) -> bool:
        if len(name) > MAX_NAME_CHARS:
            return False
        return name in self.models or re.sub(r"(\d+)([nslmx])(.+)?$", r"\1\3", name) in self.models


def find_ultralytics(python: Sequence[str]) -> UltralyticsInstall | None:
    """Return the Ultralytics of this interpreter; None if it has none, or cannot be run."""
    try:
        # Run in /: a folder called ultralytics in the user's directory would be mistaken for the package.
        result = subprocess.run(
            program(python, _FIND_FOLDER), capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    folder = result.stdout.strip().rpartition("\n")[2]
    return UltralyticsInstall(Path(folder)) if folder and Path(folder).is_dir() else None


def find_install(python: str | None) -> UltralyticsInstall | None:
    """Return the Ultralytics installation that a plan with this `python` trains with."""
    if python is not None:
        return find_ultralytics([python])
    try:
        command = find_yolo(None)
    except CommandNotRunnable:
        return None
    interpreter = find_python(command, working_folder(), os.environ)
    return find_ultralytics(interpreter) if interpreter is not None else None


def find_settings(python: str | None) -> Collection[str]:
    """Return the settings that the installed version knows; it may be newer than the list here."""
    install = find_install(python)
    return install.settings if install is not None else ()
