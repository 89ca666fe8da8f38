"""The checks, one per module. To add a check, add a module with a `CHECK` here, or to the `checks` of a framework; it is
found automatically.

check.py defines a check and its context, context.py builds the context, runner.py runs the checks within their time limits.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from holdfast.frameworks import find_modules
from holdfast.preflight.checks.check import KINDS
from holdfast.schema.pages import read_page, to_id

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import Check


@cache
def all_checks() -> tuple[Check, ...]:
    """Return the checks in the order in which they run: by kind, the ones with the longest time limit last."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    modules += find_modules("checks")
    checks = [
        replace(module.CHECK, id=to_id(module), page=read_page(module))
        for module in modules
        if hasattr(module, "CHECK")
    ]
    return tuple(sorted(checks, key=lambda check: (KINDS.index(check.kind), check.seconds, check.id)))


@cache
def by_id() -> dict[str, Check]:
    return {check.id: check for check in all_checks()}
