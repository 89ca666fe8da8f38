"""Rules about an exception that one line of the output identifies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.exits import find_failure, match_exception
from holdfast.diagnosis.rule import Rule
from holdfast.schema.events import AttemptEnded

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.diagnosis.rule import Finding, RunState

__all__ = ["AttemptEnded", "signature_rule"]


def signature_rule(
    *patterns: str, report: Callable[[RunState, AttemptEnded, str], Finding | None], **traits: Any
) -> Rule:
    """Return a rule for exceptions with a line that matches one of the patterns. `report` gets the end and that line."""

    def judge(state: RunState) -> Finding | None:
        failure = find_failure(state)
        line = match_exception(failure, *patterns) if failure else None
        return report(state, failure, line) if failure and line else None

    return Rule(kind="exit", on=(AttemptEnded,), judge=judge, **traits)
