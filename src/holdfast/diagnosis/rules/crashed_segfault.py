"""The training crashed on a bad memory access (SIGSEGV or SIGBUS).

**What it means.** Native code, not Python, failed: an extension, a driver, torch itself. There is no traceback.

**Why it happens.** Two OpenMP runtimes in one process (torch with FAISS on macOS; `openmp-duplicate` names it where something
points to it), an extension built for another torch, a full `/dev/shm` (SIGBUS, with loader workers), a broken driver.

**What to do.** With SIGBUS and loader workers: more shared memory, or workers=0. Otherwise run with
`python -X faulthandler` to see the Python line, and look for the extension in it.

Sources: faiss-wheels#73, pytorch#149201.
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


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    signal = killed_by(gone) if gone is not None else None
    if gone is None or signal not in ("SIGSEGV", "SIGBUS"):
        return None
    return Finding(
        rule="crashed-segfault",
        severity="fatal",
        message=f"Native code crashed ({signal}) {describe_position(state.attempt)}.",
        evidence=[f"exit by {signal}", *quote_evidence(gone), *gone.last_words[-2:]],
        remedies=[
            "find the line: python -X faulthandler ...",
            "if another library with OpenMP (FAISS, scikit-learn) is loaded, run it in a process of its own",
            "with SIGBUS and loader workers: more room in /dev/shm, or workers=0",
        ],
    )


RULE = Rule(
    id="crashed-segfault",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=60,
    cases=[
        Case("SIGSEGV", [*started(), *ended(signal="SIGSEGV")], "fatal"),
        Case("139 through a shell", [*started(), *ended(139)], "fatal"),
        Case("SIGABRT is another thing", [*started(), *ended(signal="SIGABRT")], None),
    ],
)
