"""The command of a stage, built from the plan and the weights that the stage starts with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.frameworks import by_name
from holdfast.schema.plan import Stage

if TYPE_CHECKING:
    from holdfast.schema.plan import Plan

DEFAULT_SIZE = 640
"""Pixels, if the plan does not set imgsz."""


def stages_of(plan: Plan) -> list[Stage]:
    """Return the stages of a plan; a plan without stages is one stage."""
    return plan.stages or [Stage(name=plan.name or "")]


def epochs_after(plan: Plan, number: int) -> float:
    """Return the length of the later stages in epochs of this one. The time of an epoch is proportional to its pixels."""
    current, *later = [{**plan.settings, **stage.settings} for stage in plan.stages[number - 1 :]]
    pixels = float(current.get("imgsz") or DEFAULT_SIZE) ** 2
    return sum(
        float(settings.get("epochs") or 0) * float(settings.get("imgsz") or DEFAULT_SIZE) ** 2 / pixels
        for settings in later
    )


def stage_plan(plan: Plan, stage: Stage, weights: str | None = None) -> Plan:
    """Return the plan of a single stage, with the command that runs it."""
    settings, command = by_name(plan.trainer).build_stage(
        plan, stage.name, {**plan.settings, **stage.settings}, stage.command or plan.command, weights
    )
    return msgspec.structs.replace(plan, command=command, settings=settings, stages=[], name=stage.name or plan.name)
