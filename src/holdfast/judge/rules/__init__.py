"""One rule a file. A new rule is a new file here with a `RULE`; nothing else has to know of it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.judge.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(sorted((module.RULE for module in modules), key=lambda rule: rule.id))


@cache
def by_id() -> dict[str, Rule]:
    return {rule.id: rule for rule in all_rules()}
