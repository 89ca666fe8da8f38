"""What is concluded from events: findings, decisions, proofs, verdicts."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec

from holdfast.schema.numbers import Count, Seconds, Whole

Severity = Literal["note", "warn", "fatal"]
Confidence = Literal["proven", "likely", "possible"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rule concluded, with its evidence."""

    rule: str
    severity: Severity
    attempt: Count = 0
    step: Count | None = None
    epoch: Count | None = None
    message: str
    evidence: list[str] = []
    remedies: list[str] = []
    """What a person can do, the cheapest first."""
    confidence: Confidence = "proven"
    """How sure the conclusion is, where the evidence leaves room for another."""
    updated: bool = False
    """The same as was found before, with the numbers as they stand at the end of the attempt."""
    retracted: bool = False
    """What was found before about the newest course no longer held when the attempt ended: from here on it does not stand."""
    corrupt_from: Count | None = None
    """The step from which on the training's state is spoiled: what was saved before it is still good."""


class Action(str, Enum):
    CONTINUE = "continue"
    """Leave the attempt alone."""
    STOP = "stop"
    """The run is over."""
    RESTART = "restart"
    """Another attempt, as planned."""
    RETRY = "retry"
    """Another attempt, with a remedy."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that the next attempt does otherwise."""

    setting: str
    """A setting of the framework, or `validation.NAME`, `clear_cache.NAME`, `assigner`, `environment.NAME`."""
    before: Any
    after: Any
    why: str = ""
    costs: str = ""
    """In accuracy or time; empty: nothing."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: Action
    attempt: Count
    why: str
    cause: str | None = None
    wait_s: Seconds = 0.0
    changes: list[Change] = []
    """What the next attempt does otherwise."""
    discard_from: Count | None = None
    """The state from this step on is spoiled: only what was saved before it may be gone on from."""
    planned: bool = False
    """It was stopped and started again on purpose: no failure, and no attempt spent."""


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question that the verdict rests on, and its answer."""

    name: str
    answer: Literal["holds", "fails", "missing", "does not apply"]
    positive: bool = False
    """A positive proof shows learning; the others only show that nothing speaks against it."""
    detail: str = ""


class Outcome(str, Enum):
    LEARNED = "learned"
    UNPROVEN = "unproven"
    NOT_LEARNED = "not-learned"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    reason: str
    proofs: list[Proof] = []
    exit_status: Whole = 0
