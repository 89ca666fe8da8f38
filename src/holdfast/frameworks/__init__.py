"""The training frameworks that Holdfast knows, each in a package of its own: everything about one framework is in it.

To add a framework, add a package with a `FRAMEWORK` (see base.py); nothing else has to know of it. Its modules `rules/*`,
`checks/*` and `remedies/*` are found like those of the packages `diagnosis.rules`, `preflight.checks` and `remedies`. Its
folder `probe/` contains the package that runs inside a training (see `holdfast_probe.frameworks`).

This module imports nothing, so that every layer may ask it. A framework is imported when it is first needed.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import ModuleType

    from holdfast.frameworks.base import Framework

COMMAND = "command"
"""The trainer of a plan that runs a command of the user's own."""


@cache
def names() -> tuple[str, ...]:
    """Return the names of the frameworks, as `trainer` in a plan."""
    return tuple(found.name for found in pkgutil.iter_modules(__path__) if found.ispkg)


@cache
def by_name(name: str | None) -> Framework:
    """Return a framework; for a command, or for a name that is unknown here, the one of which nothing is known."""
    module = importlib.import_module(f"{__name__}.{name if name in names() else 'base'}")
    framework: Framework = module.FRAMEWORK
    return framework


def all_frameworks() -> Iterator[Framework]:
    return map(by_name, names())


def framework_packages() -> list[str]:
    """Return the distributions of all frameworks whose versions matter."""
    return [package for framework in all_frameworks() for package in framework.packages]


def default() -> Framework:
    """Return the framework of a plan that names neither a trainer nor a command: the first that builds commands."""
    return next((framework for framework in all_frameworks() if framework.builds_command), by_name(COMMAND))


def find_framework(known: str | None, command: Sequence[str], imports: Collection[str] = ()) -> Framework:
    """Return the framework that is `known` (the plan's trainer, or the one that the probe has seen), else by the command."""
    if known in names():
        return by_name(known)
    return next((framework for framework in all_frameworks() if framework.recognizes(command, imports)), by_name(None))


def find_modules(kind: str) -> Iterator[ModuleType]:
    """Yield the modules of one kind (rules, checks, remedies) of all frameworks."""
    for name in names():
        for found in pkgutil.iter_modules([str(Path(folder) / name / kind) for folder in __path__]):
            yield importlib.import_module(f"{__name__}.{name}.{kind}.{found.name}")
