"""The definition of a rule: one diagnosis, with its documentation page and its test cases. A rule imports its types from here.

A rule reports, the engine collects, the policy decides: a rule never acts. Its `judge` is a pure function of the run state
and is called after each event of the types in `on`. Its cases are short histories that must trigger it or must not. Tests
and documentation are generated from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from holdfast.diagnosis.run_state import AttemptState, RunState
from holdfast.schema.verdicts import Finding, Severity
from holdfast.testing.histories import join_history

if TYPE_CHECKING:
    from holdfast.schema.events import Event
    from holdfast.testing.histories import History

__all__ = ["AttemptState", "Case", "Finding", "Kind", "Limits", "Rule", "RunState", "Severity"]

Kind = Literal["learning", "resources", "exit", "proof", "watching"]
Limits = Mapping[str, float]


class Case:
    """A short history of events, and the expected result of the rule.

    `expected` is the severity of the finding, or None if the rule must report nothing. The history starts with the start of
    a run, which is added if it is missing.
    """

    def __init__(self, description: str, expected: Severity | None, *history: History) -> None:
        self.description = description
        self.expected = expected
        self.history = join_history(*history)


@dataclass(frozen=True)
class Rule:
    kind: Kind
    on: tuple[type[Event], ...]
    judge: Callable[[RunState], Finding | None]
    cases: Callable[[], list[Case]]
    """Called only by tests and for documentation."""
    id: str = ""
    """The name of the module in kebab case, set when the rule is found. It is stable and states the fact."""
    page: str = ""
    """The docstring of the module, set when the rule is found: what the finding means, why it happens, what to do, sources."""
    limits: Limits = field(default_factory=dict)
    """Numbers that a user may set for one run (`--rule ID.NAME=VALUE`), with their defaults. `judge` reads them with
    `state.get_limits(id, LIMITS)`."""
    words: tuple[str, ...] = ()
    """Regular expressions. Output lines that match while the training runs are recorded as `printed`."""
    retractable: bool = False
    """The finding describes the state of the training at its newest validations. It is retracted if it no longer applies at
    the end of an attempt."""
    cause: int = 0
    """Of several findings about the same failure, the one with the highest value is its cause; 0: it is never the cause."""
    remedies: tuple[str, ...] = ()
    """Ids of remedy steps in the order in which they are tried; empty: it cannot be fixed automatically."""
    remedies_by_cause: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Instead of `remedies`, if they depend on the cause that the finding names in its `data`."""
    corrupts_state: bool = False
    """The state of the attempt becomes unusable: do not resume from it."""
    predicts_kill: bool = False
    """It predicts a failure, so a snapshot should be taken at once."""
    suspects_device: bool = False
    """A device that computes wrong results may be the reason."""
    restarts_while_running: bool = False
    """It is worth a restart while the training is still running."""
    external: bool = False
    """The cause is unrelated to the training itself: it only uses up attempts."""
    fails_again: bool = False
    """If it happens before the first step, it happens again at the same place."""
    in_dry_run: bool = False
    """A few steps that repeat a batch are enough for it. Rules of the kind `exit` always apply to a dry run."""
    contradicts: tuple[str, ...] = ()
    """Proofs that fail if a warning of this rule still applies at the end."""
    charts: tuple[str, ...] = ()
    """Charts of the report that show its subject, in addition to those of its kind."""
