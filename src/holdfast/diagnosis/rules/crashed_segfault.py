"""The training process crashed on an invalid memory access (SIGSEGV or SIGBUS).

**What it means.** The crash occurred in native code, not in Python: in an extension, a driver, or PyTorch itself. There
is no Python traceback.

**Why it happens.** Common causes are two OpenMP runtimes in one process (for example torch and FAISS on macOS; reported
as `openmp-duplicate` if it can be identified), an extension built for a different version of torch, a full `/dev/shm`
(SIGBUS, with DataLoader workers), or a faulty driver.

**What to do.** If the signal is SIGBUS and you use DataLoader workers, provide more shared memory, or use
`num_workers=0`. Otherwise run with `python -X faulthandler` to get the Python traceback; the innermost frame shows
which extension was called.

Sources: faiss-wheels#73, pytorch#149201.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, quote_evidence
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    signal = killed_by(failure) if failure is not None else None
    if failure is None or signal not in ("SIGSEGV", "SIGBUS"):
        return None
    return Finding(
        severity="fatal",
        message=f"Native code crashed ({signal}) {describe_position(state.attempt)}.",
        evidence=[f"terminated by {signal}", *quote_evidence(failure), *failure.last_lines[-2:]],
        remedies=[
            "get the Python traceback: python -X faulthandler ...",
            "if another library that uses OpenMP (FAISS, scikit-learn) is loaded, run it in a separate process",
            "with SIGBUS and DataLoader workers, provide more space in /dev/shm, or use num_workers=0",
        ],
    )


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=60,
    remedies=("as-it-is", "no-workers", "one-thread", "accumulate-less", "next-device"),
    cases=lambda: [
        Case("SIGSEGV", "fatal", ended(signal="SIGSEGV")),
        Case("status 139 from a shell", "fatal", ended(139)),
        Case("SIGABRT is a different failure", None, ended(signal="SIGABRT")),
    ],
)
