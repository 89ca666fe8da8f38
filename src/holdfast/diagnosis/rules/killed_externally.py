"""Something outside ended the training.

**What it means.** A signal from another process ended it, and nothing points to memory: a person, a scheduler, a logout, a
supervisor of another kind, a container's limit that leaves no word.

**What to do.** Nothing in the training has to change. Holdfast goes on from what was saved; such a kill only spends an
attempt.

**When it stays silent.** When the signal came through Holdfast (Ctrl-C, `kill` to Holdfast itself) it was somebody's wish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.rules import killed_out_of_memory
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, memory, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

MAX_TOLD = 6
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    signal = killed_by(gone) if gone is not None else None
    if gone is None or signal is None or signal in _CRASHES or killed_out_of_memory.judge(state) is not None:
        return None
    attempt = state.attempt
    return Finding(
        rule="killed-externally",
        severity="fatal",
        message=f"The training was ended from outside by {signal} {describe_position(attempt)}; nothing points to memory.",
        evidence=[f"exit by {signal}", *quote_evidence(gone)],
        remedies=[_advice(state, signal)],
    )


def _advice(state: RunState, signal: str) -> str:
    before = [each for each in state.attempts[:-1] if each.found("killed-externally") is not None]
    lives = [each.ended.seconds for each in (*before, state.attempt) if each.ended is not None]
    if not before:
        return "nothing in the training has to change; find out what sends the signal if it comes again"
    told = ", ".join(f"{seconds:.0f}" for seconds in lives[-MAX_TOLD:])
    return (
        f"find out what sends {signal}: it has come {len(lives)} times, after {told} s. A time limit of a scheduler or a "
        "container comes after about the same time; else ask who may end your processes"
    )


RULE = Rule(
    id="killed-externally",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=20,
    cases=[
        Case(
            "kill -9 with memory to spare",
            [*started(), *trains(), *losses(1.0), *memory(9.0), *ended(signal="SIGKILL")],
            "fatal",
        ),
        Case("a scheduler's TERM", [*started(), *ended(signal="SIGTERM")], "fatal"),
        Case("a shell passed 137 on", [*started(), *ended(137)], "fatal"),
        Case("memory ran out", [*started(), *memory(0.2), *ended(signal="SIGKILL")], None),
        Case("it crashed by itself", [*started(), *ended(signal="SIGSEGV")], None),
        Case("the user pressed Ctrl-C", [*started(), *ended(signal="SIGINT", stopped_by="user")], None),
    ],
)
