"""What a rung of the ladder is, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change


@dataclass(frozen=True)
class Remedy:
    """The least change that answers a finding."""

    id: str
    description: str
    """What is done and why, for people."""
    changes: list[Change] = field(default_factory=list)
    """Empty: a fresh process goes on, with nothing changed."""
    from_start: bool = False
    """The state of this attempt is spoiled: go on only from what was saved before the finding's `since`, or start over."""


@dataclass(frozen=True)
class RemedyStep:
    """One way to answer a finding. It says None where it does not apply, changes nothing, or may not."""

    id: str
    summary: str
    """For the page of the ladder: a sentence."""
    costs: str
    """In accuracy and time."""
    remedy: Callable[[RemedyContext], Remedy | None]
    conditional: str = ""
    """When it stands at this place of a ladder, where that is not always."""


def remedy(id_: str, description: str, *changes: Change | None) -> Remedy | None:
    """Of these changes those that there are to make; None where there is none."""
    made = [change for change in changes if change is not None]
    return Remedy(id_, description, made) if made else None


def whole_remedy(id_: str, description: str, *changes: Change | None) -> Remedy | None:
    """All of these changes or none: they make sense together only."""
    made = [change for change in changes if change is not None]
    return Remedy(id_, description, made) if len(made) == len(changes) else None
