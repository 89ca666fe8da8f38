"""Loading a plan file on this machine: checked against its memory, Holdfast's rules and the installed framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id
from holdfast.machine import this_machine
from holdfast.storage.plan.load import ReadContext, read

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.schema.plan import Plan


def open_plan(path: Path) -> Plan:
    """Read a plan file. Raise PlanInvalid with everything that is wrong with it."""
    rules = {name: tuple(rule.limits) for name, rule in by_id().items()}
    return read(path, ReadContext(memory=lambda: this_machine().memory().limit, rules=rules))
