"""Remedies: for each cause an ordered list of steps, those with the lowest cost in accuracy and time first.

`remedy_for` tries the steps in order and returns the first remedy that applies, changes something, is allowed by the plan and
was not tried before. `apply_changes` makes the next plan from its changes. Both are pure: earlier remedies are read from the
decisions in the run state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from holdfast.diagnosis.rules import by_id
from holdfast.remedies.command_line import is_spelling, rewrite_command
from holdfast.remedies.context import build_remedy_context
from holdfast.remedies.registry import remedy_steps_for
from holdfast.remedies.step import Remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Change

__all__ = ["Remedy", "apply_changes", "remedy_for"]


def corrupts_state(cause: str | None) -> bool:
    """Return whether a cause makes the state of its attempt unusable."""
    rule = by_id().get(cause or "")
    return rule is not None and rule.corrupts_state


def remedy_for(state: RunState, plan: Plan, cause: str) -> Remedy | None:
    """Return the next remedy for this cause in this run; None if no remedy is left, or if the cause has no remedies."""
    context = build_remedy_context(state, plan, cause)
    for remedy_step in remedy_steps_for(context):
        remedy = remedy_step.remedy(context)
        if remedy is not None and not context.has_tried(remedy.changes):
            return replace(remedy, id=remedy_step.id, from_start=corrupts_state(cause))
    return None


def apply_changes(plan: Plan, changes: Sequence[Change]) -> Plan:
    """Return the plan with these changes.

    Arguments of the command (`--batch-size`, `batch=`) are rewritten in the command. Settings that the probe can set go to
    `overrides`, which take precedence over the command.
    """
    for change in changes:
        plan = _apply(plan, change.setting, change.after)
    return plan


def _apply(plan: Plan, what: str, after: Any) -> Plan:
    part, _, name = what.partition(".")
    if is_spelling(what):
        return structs.replace(plan, command=rewrite_command(plan.command, what, after, plan.flags))
    if part == "environment":
        return structs.replace(plan, environment={**plan.environment, name: str(after)})
    if part in ("validation", "clear_cache") and name:
        return structs.replace(plan, **{part: structs.replace(getattr(plan, part), **{name: after})})
    if what == "assigner":
        return structs.replace(plan, assigner=after)
    return structs.replace(plan, overrides={**plan.overrides, what: after})
