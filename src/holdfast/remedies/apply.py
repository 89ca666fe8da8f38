"""Applying changes: a plan in, the next plan out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.remedies.command_line import is_spelling, rewrite_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Change

_PARTS = ("validation", "clear_cache")


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
        return replace(plan, command=rewrite_command(plan.command, what, after, plan.flags))
    if part == "environment":
        return replace(plan, environment={**plan.environment, name: str(after)})
    if part in _PARTS and name:
        return replace(plan, **{part: replace(getattr(plan, part), **{name: after})})
    if what == "assigner":
        return replace(plan, assigner=after)
    return replace(plan, overrides={**plan.overrides, what: after})
