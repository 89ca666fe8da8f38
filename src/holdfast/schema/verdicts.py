"""Conclusions drawn from events: findings, decisions, proofs, verdicts."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec

from holdfast.schema.numbers import Count, Seconds, Whole

Severity = Literal["note", "warn", "fatal"]
Confidence = Literal["proven", "likely", "possible"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conclusion of a rule, with its evidence."""

    rule: str = ""
    """Its id, set by the engine."""
    severity: Severity
    attempt: Count = 0
    step: Count | None = None
    epoch: Count | None = None
    message: str
    evidence: list[str] = []
    remedies: list[str] = []
    """What the user can do, cheapest first."""
    confidence: Confidence = "proven"
    """How certain the conclusion is, if the evidence allows another one."""
    updated: bool = False
    """An earlier finding, repeated with the numbers at the end of the attempt."""
    retracted: bool = False
    """An earlier finding about the most recent steps that was no longer true at the end of the attempt. It is void."""
    corrupt_from: Count | None = None
    """The training state is corrupt from this step on. Anything saved before it is still good."""
    data: dict[str, str] = {}
    """Facts for decisions, as codes: `cause`, what the rule found to be the reason."""


class Action(str, Enum):
    CONTINUE = "continue"
    """Let the attempt run."""
    STOP = "stop"
    """The run is over."""
    RESTART = "restart"
    """Start another attempt, unchanged."""
    RETRY = "retry"
    """Start another attempt, with a remedy applied."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One setting that the next attempt changes."""

    setting: str
    """A setting of the framework, or `validation.NAME`, `clear_cache.NAME`, `assigner`, `environment.NAME`."""
    before: Any
    after: Any
    why: str = ""
    costs: str = ""
    """Cost in accuracy or time; empty if there is none."""


StopReason = Literal[
    "not-ended",
    "finished",
    "user",
    "terminate",
    "budget",
    "observe-only",
    "would-fail-again",
    "disk-full",
    "mistake",
    "no-attempt-left",
    "no-progress",
    "not-backed-up",
]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: Action
    attempt: Count
    why: str
    stop_reason: StopReason | None = None
    """Why the run is over, as a code."""
    cause: str | None = None
    wait_s: Seconds = 0.0
    changes: list[Change] = []
    """What the next attempt changes."""
    discard_from: Count | None = None
    """The training state is corrupt from this step on: resume only from something saved before it."""
    planned: bool = False
    """The training was stopped and restarted on purpose. This is not a failure and does not use up an attempt."""


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question that the verdict depends on, and its answer."""

    name: str
    answer: Literal["holds", "fails", "missing", "does not apply"]
    positive: bool = False
    """A positive proof shows that the model learned; the others only show that nothing contradicts it."""
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
