"""The training aborted itself (SIGABRT or a trap).

**What it means.** Native code found something it could not go on with and said so before it ended the process; its last
words on stderr are the cause.

**Why it happens.** A C++ exception that nobody caught, a failed assertion of a driver, corrupted memory. Aborts that are known by
their words have rules of their own, which then name the cause: `openmp-duplicate`, `command-buffer-reused`,
`fork-after-metal`.

**What to do.** Read the last words; they are kept as evidence with the finding and in the attempt's stderr.log.

Sources: pytorch#108996, pytorch#197805, faiss-wheels#73.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_SIGNALS = ("SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    signal = killed_by(gone) if gone is not None else None
    if gone is None or signal not in _SIGNALS:
        return None
    words = [line for line in gone.last_words if line.strip()][-3:]
    return Finding(
        rule="crashed-abort",
        severity="fatal",
        message=f"Native code aborted ({signal}) {describe_position(state.attempt)}."
        + (f" It said: {words[-1]}" if words else ""),
        evidence=[f"exit by {signal}", *quote_evidence(gone), *words],
        remedies=["read the last words: they name what could not go on"],
    )


RULE = Rule(
    id="crashed-abort",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=60,
    cases=[
        Case(
            "abort",
            [*started(), *ended(signal="SIGABRT", words=["OMP: Error #15: Initializing libomp.dylib"])],
            "fatal",
        ),
        Case("134 through a shell", [*started(), *ended(134)], "fatal"),
        Case("a Python exception", [*started(), *ended(1, words=["ValueError: no"])], None),
    ],
)
