"""One rule per module. To add a rule, add a module with a `RULE` here, or to the `rules` of a framework; it is found
automatically.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from holdfast.frameworks import find_modules
from holdfast.schema.pages import read_page, to_id

if TYPE_CHECKING:
    from holdfast.diagnosis.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    modules += find_modules("rules")
    rules = (replace(module.RULE, id=to_id(module), page=read_page(module)) for module in modules)
    return tuple(sorted(rules, key=lambda rule: rule.id))


@cache
def by_id() -> dict[str, Rule]:
    return {rule.id: rule for rule in all_rules()}
