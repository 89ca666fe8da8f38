"""The training process aborted (SIGABRT, SIGTRAP or a similar signal).

**What it means.** Native code encountered an error that it could not recover from, printed a message and aborted the
process. The last lines on stderr usually name the cause.

**Why it happens.** Common causes are an uncaught C++ exception, a failed assertion in a driver, or corrupted memory.
Some aborts are recognized by their message and have their own rule, which names the cause: `openmp-duplicate`,
`command-buffer-reused` and `fork-after-metal`.

**What to do.** Read the last lines of the output. They are shown in the report and stored in `attempts/<n>/stderr.log`
in the run folder.

**When it is reported.** It is reported for SIGABRT, SIGILL, SIGFPE, SIGTRAP and SIGSYS.

Sources: pytorch#108996, pytorch#197805, faiss-wheels#73.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended

_SIGNALS = ("SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    signal = killed_by(failure) if failure is not None else None
    if failure is None or signal not in _SIGNALS:
        return None
    lines = [line for line in failure.last_lines if line.strip()][-3:]
    return Finding(
        severity="fatal",
        message=f"Native code aborted ({signal}) {describe_position(state.attempt)}."
        + (f" Last output: {lines[-1]}" if lines else ""),
        evidence=[f"terminated by {signal}", *quote_evidence(failure), *lines],
        remedies=["read the last lines of the output: they usually name the error"],
    )


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=60,
    remedies=("as-it-is", "one-thread", "accumulate-less", "next-device"),
    cases=lambda: [
        Case("abort", "fatal", ended(signal="SIGABRT", words=["OMP: Error #15: Initializing libomp.dylib"])),
        Case("status 134 from a shell", "fatal", ended(134)),
        Case("a Python exception", None, ended(1, words=["ValueError: no"])),
    ],
)
