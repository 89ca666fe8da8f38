"""The drills, one per file."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.simulator.drill import Drill


@functools.cache
def all_drills() -> tuple[Drill, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").DRILL for name in names)


def names() -> list[str]:
    return [drill.name for drill in all_drills()]


def find_drill(name: str) -> Drill | None:
    return next((drill for drill in all_drills() if drill.name == name), None)
