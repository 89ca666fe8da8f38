"""The ladder: for each cause an ordered list of remedies, the cheapest in accuracy and time first.

`remedy_for` asks one rung after the other; the first that applies, changes something, is allowed by the plan and was not
tried before answers. `applied` makes the next plan of its changes. Both are pure: what was tried is read from the decisions
in the run state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.remedies.apply import apply_changes
from holdfast.remedies.context import build_remedy_context
from holdfast.remedies.registry import CORRUPTING, remedy_steps_for
from holdfast.remedies.step import Remedy

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.plan import Plan

__all__ = ["CORRUPTING", "Remedy", "applied", "remedy_for"]


def remedy_for(state: RunState, plan: Plan, cause: str) -> Remedy | None:
    """The next rung for this cause in this run; None where there is none left, or never was one."""
    now = build_remedy_context(state, plan, cause)
    for remedy_step in remedy_steps_for(now):
        remedy = remedy_step.remedy(now)
        if remedy is not None and not now.has_tried(remedy.changes):
            return replace(remedy, from_start=cause in CORRUPTING)
    return None
