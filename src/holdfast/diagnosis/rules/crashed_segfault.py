"""The training crashed on an invalid memory access (SIGSEGV or SIGBUS).

**What it means.** Native code failed, not Python: an extension, a driver, or torch itself. There is no traceback.

**Why it happens.** Two OpenMP runtimes in one process (torch with FAISS on macOS; `openmp-duplicate` names it if there
is evidence for it), an extension built for another version of torch, a full `/dev/shm` (SIGBUS, with DataLoader
workers), a broken driver.

**What to do.** With SIGBUS and DataLoader workers: provide more shared memory, or use workers=0. Otherwise run with
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
    failure = find_failure(state)
    signal = killed_by(failure) if failure is not None else None
    if failure is None or signal not in ("SIGSEGV", "SIGBUS"):
        return None
    return Finding(
        rule="crashed-segfault",
        severity="fatal",
        message=f"Native code crashed ({signal}) {describe_position(state.attempt)}.",
        evidence=[f"terminated by {signal}", *quote_evidence(failure), *failure.last_lines[-2:]],
        remedies=[
            "find the Python line: python -X faulthandler ...",
            "if another library that uses OpenMP (FAISS, scikit-learn) is loaded, run it in a separate process",
            "with SIGBUS and DataLoader workers: more space in /dev/shm, or workers=0",
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
        Case("status 139 from a shell", [*started(), *ended(139)], "fatal"),
        Case("SIGABRT is a different failure", [*started(), *ended(signal="SIGABRT")], None),
    ],
)
