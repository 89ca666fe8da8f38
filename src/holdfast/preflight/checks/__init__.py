"""One check a file. A new check is a new file here with a `CHECK`; nothing else has to know of it.

frame.py says what a check is and what it is given, grounding.py finds that out, running.py runs them within their time.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from holdfast.preflight.checks.check import KINDS
from holdfast.schema.pages import page_of

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import Check


@cache
def all_checks() -> tuple[Check, ...]:
    """In the order in which they are run: by kind, and those that may take long last."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    checks = [replace(module.CHECK, page=page_of(module)) for module in modules if hasattr(module, "CHECK")]
    return tuple(sorted(checks, key=lambda check: (KINDS.index(check.kind), check.seconds, check.id)))


@cache
def by_id() -> dict[str, Check]:
    return {check.id: check for check in all_checks()}
