"""The training process was killed from outside.

**What it means.** The process was terminated by an external signal (from a person, a scheduler, a logout, another
supervisor, or a container limit that leaves no message), and there is no sign of an out-of-memory kill.

**What to do.** You do not have to change your script. Holdfast resumes from the last checkpoint; the kill counts as one
of the attempts (`--max-attempts`).

**When it is not reported.** If you stopped the run through Holdfast (Ctrl-C, or `kill` with the process ID of
Holdfast), nothing is reported.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.diagnosis.rules import killed_out_of_memory
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, memory, trains

MAX_LISTED = 6
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    signal = killed_by(failure) if failure is not None else None
    if failure is None or signal is None or signal in _CRASHES or killed_out_of_memory.judge(state) is not None:
        return None
    attempt = state.attempt
    return Finding(
        severity="fatal",
        message=f"The training process was terminated from outside by {signal} {describe_position(attempt)}; there is no sign of an out-of-memory kill.",
        evidence=[f"terminated by {signal}", *quote_evidence(failure)],
        remedies=[_remedy(state, signal)],
    )


def _remedy(state: RunState, signal: str) -> str:
    earlier = [attempt for attempt in state.attempts[:-1] if attempt.find_finding("killed-externally") is not None]
    seconds = [attempt.ended.seconds for attempt in (*earlier, state.attempt) if attempt.ended is not None]
    if not earlier:
        return "you do not have to change your script; if it happens again, find out what sends the signal"
    listed = ", ".join(f"{value:.0f}" for value in seconds[-MAX_LISTED:])
    return (
        f"find out what sends {signal}: it was sent {len(seconds)} times, after {listed} s. If the times are about "
        "equal, a time limit of a scheduler or container is likely; otherwise find out who can kill your processes"
    )


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=20,
    external=True,
    cases=lambda: [
        Case("kill -9 with enough free memory", "fatal", trains(), losses(1.0), memory(9.0), ended(signal="SIGKILL")),
        Case("SIGTERM from a scheduler", "fatal", ended(signal="SIGTERM")),
        Case("status 137 from a shell", "fatal", ended(137)),
        Case("memory ran out", None, memory(0.2), ended(signal="SIGKILL")),
        Case("a crash", None, ended(signal="SIGSEGV")),
        Case("the user pressed Ctrl-C", None, ended(signal="SIGINT", stopped_by="user")),
    ],
)
