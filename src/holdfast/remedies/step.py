"""The types `RemedyStep`, a step in the list of remedies for a cause, and `Remedy`, its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change


@dataclass(frozen=True)
class Remedy:
    """The smallest change that addresses a finding."""

    description: str
    """What is done and why, for the user."""
    changes: list[Change] = field(default_factory=list)
    """If empty, a new process resumes with nothing changed."""
    id: str = ""
    """The id of the step."""
    from_start: bool = False
    """The state of this attempt is corrupt: resume only from what was saved before the finding's `since`, or start over."""


@dataclass(frozen=True)
class RemedyStep:
    """One way to address a finding."""

    id: str
    summary: str
    """For the documentation page of the remedies."""
    costs: str
    """The cost in accuracy and time."""
    remedy: Callable[[RemedyContext], Remedy | None]
    """Returns None if the step does not apply, would change nothing, or is not allowed."""
    framework: str = ""
    """The only framework that the step is for; empty: any. There it replaces a general step with the same id: then `summary`
    and `costs` only say what differs."""


def remedy_step(costs: str) -> Callable[[Callable[[RemedyContext], Remedy | None]], RemedyStep]:
    """Make a step of a function. Its name is the id, its docstring the summary, and its package the framework."""

    def make(function: Callable[[RemedyContext], Remedy | None]) -> RemedyStep:
        framework = function.__module__.partition(".frameworks.")[2].partition(".")[0]
        summary = " ".join((function.__doc__ or "").split())
        return RemedyStep(function.__name__.replace("_", "-"), summary, costs, function, framework)

    return make


def remedy(description: str, *changes: Change | None) -> Remedy | None:
    """Return a remedy with those changes that are not None; None if all of them are."""
    present = [change for change in changes if change is not None]
    return Remedy(description, present) if present else None


def all_or_nothing(description: str, *changes: Change | None) -> Remedy | None:
    """Return a remedy with all of these changes; None if any of them is None, because they only make sense together."""
    return None if None in changes else remedy(description, *changes)
