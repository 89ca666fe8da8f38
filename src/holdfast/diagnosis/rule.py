"""What a rule is: one diagnosis, with its page of documentation and its own cases.

A rule reports, the engine collects, the policy decides: a rule never acts. Its `judge` is a pure function of the run state
and is asked after each event of the kinds in `on`. Its cases are short histories that must make it speak or leave it
silent; tests and documentation are made from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.events import AnyEvent, Event
    from holdfast.schema.verdicts import Finding, Severity

Kind = Literal["learning", "resources", "exit", "proof", "watching"]


@dataclass(frozen=True)
class Case:
    """A short history of events, and what the rule must make of it."""

    description: str
    history: list[AnyEvent]
    expected: Severity | None
    """The severity of the finding, or None when the rule must stay silent."""


@dataclass(frozen=True)
class Rule:
    id: str
    """Stable, kebab-case, states the fact."""
    kind: Kind
    on: tuple[type[Event], ...]
    judge: Callable[[RunState], Finding | None]
    cases: list[Case]
    page: str
    """The module's docstring: what it means, why it happens, what to do, sources."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Numbers that a user may set for one run (`--rule ID.NAME=VALUE`), with their defaults. `judge` reads them with
    `state.tuned(id, LIMITS)`."""
    words: tuple[str, ...] = ()
    """Regular expressions of output lines that this rule wants to be told of while the training runs, as `printed`."""
    retractable: bool = False
    """It speaks of where the whole training stands with its newest validations: what is no longer so at an attempt's end is taken back."""
    cause: int = 0
    """Among findings about the same death the highest names its cause; 0 when it never explains one."""
