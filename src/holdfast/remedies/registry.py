"""Finds the steps of a finding's remedies. To add a step, write a function with `remedy_step` in a module of this package, or
in the `remedies` of a framework, and name its id in the rules that it is for.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.remedy_ids import ENDED_IN_VALIDATION, PEAK_IN_VALIDATION
from holdfast.diagnosis.rules import by_id
from holdfast.frameworks import find_modules
from holdfast.remedies.step import RemedyStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.remedies.context import RemedyContext


class Condition(NamedTuple):
    text: str
    holds: Callable[[RemedyContext], bool]


CONDITIONS = {
    ENDED_IN_VALIDATION: Condition("if the attempt ended during validation", lambda context: context.in_validation),
    PEAK_IN_VALIDATION: Condition(
        "if validation used more memory than training",
        lambda context: context.validation_is_peak and context.plan.validation.batch is None,
    ),
}


@cache
def all_steps() -> dict[tuple[str, str], RemedyStep]:
    """Return framework, id -> step. The framework is empty for a step that applies to all frameworks."""
    here = pkgutil.iter_modules([str(Path(__file__).parent)])
    modules = [importlib.import_module(f"{__package__}.{found.name}") for found in here]
    values = [value for module in (*modules, *find_modules("remedies")) for value in vars(module).values()]
    return {(value.framework, value.id): value for value in values if isinstance(value, RemedyStep)}


def find_steps(ids: Sequence[str], framework: str) -> Iterator[RemedyStep]:
    """Yield the steps of a framework; those of other frameworks are left out. A framework's own step replaces a general one."""
    for name in ids:
        id_, _, condition = name.partition("@")
        step = all_steps().get((framework, id_)) or all_steps().get(("", id_))
        if step is not None:
            yield _add_condition(step, CONDITIONS[condition]) if condition else step


def _add_condition(step: RemedyStep, condition: Condition) -> RemedyStep:
    return replace(step, remedy=lambda context: step.remedy(context) if condition.holds(context) else None)


def remedy_steps_for(context: RemedyContext) -> Iterator[RemedyStep]:
    """Yield the steps for a cause, in the order in which they are tried."""
    rule = by_id().get(context.cause)
    if rule is None:
        return iter(())
    ids = rule.remedies_by_cause.get(context.named_cause, rule.remedies)
    if context.device == "cuda" and "half-rate" in ids:
        # On CUDA, overflow and learning rates are much more likely reasons for values that are not finite than the device.
        ids = (*(id_ for id_ in ids if id_ != "next-device"), "next-device")
    return find_steps(ids, context.framework.name)
