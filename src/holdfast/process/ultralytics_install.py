"""The Ultralytics package of an interpreter, found without importing it: its folder, its settings, its models."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.process.python_command import program

if TYPE_CHECKING:
    from collections.abc import Sequence

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
