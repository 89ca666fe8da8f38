"""Two OpenMP runtimes in one process ended it.

**What it means.** torch brings an OpenMP runtime, and so does another library in the same process (FAISS, xgboost, OpenCV,
scikit-learn): their threads take each other's memory. The second runtime either notices and aborts (`OMP: Error #15`, exit
status 134), or does not and crashes (SIGSEGV) whenever both happen to work at once.

**Why it happens.** On macOS, where each wheel carries its own `libomp.dylib`. On Linux only with mixed sources (conda and pip).

**Where reports conclude wrongly.** "Gradient accumulation crashes MPS", "empty_cache makes it worse": the time of such a crash
is chance, so two runs each say nothing. In the public sequel of that very project runs with less accumulation crashed too,
then one on the CPU; its later recipe names torch and FAISS in one process. The signal and the last words tell at once.

**What to do.** Run the other library in a process of its own, or with one thread (`faiss.omp_set_num_threads(1)`); save before
each search. `KMP_DUPLICATE_LIB_OK=TRUE` hides the message, not the fault: it may crash later or compute wrong numbers.

**Confidence.** Proven by `OMP: Error #15`. Likely for a crash on macOS with FAISS or an OpenMP runtime in the last words, or
with `KMP_DUPLICATE_LIB_OK` set.

Sources: faiss-wheels#73, faiss-wheels#40, pytorch#149201, pytorch#78490, pytorch#155201.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import (
    describe_position,
    exception_line,
    find_failure,
    killed_by,
    match_output,
    quote_evidence,
)
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import on_mps
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import TRACEBACK, ended, losses, started
from holdfast.testing.signatures import on_mac, unknown_machine

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.events import AttemptEnded

_ERROR = r"OMP: Error #15: Initializing "
_TRACES = (r"\bfaiss\b|swigfaiss", r"\blibi?omp5?\b", r"\b__kmp_\w+")
HIDES = "KMP_DUPLICATE_LIB_OK"
_CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGTRAP")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    if gone is None:
        return None
    crashed = killed_by(gone) in _CRASHES
    words = match_output(gone, _ERROR) if crashed or exception_line(gone) is None else None
    traces = [words] if words else _traces(state, gone) if crashed else []
    if not traces:
        return None
    return Finding(
        rule="openmp-duplicate",
        severity="fatal",
        confidence="proven" if words else "likely",
        message=f"Two OpenMP runtimes in one process {'ended it' if words else 'most likely crashed it'} "
        f"{describe_position(state.attempt)}. Batch size, accumulation and cache clearing have no part in that.",
        evidence=[*traces, *quote_evidence(gone)],
        remedies=[
            "run the other library (FAISS, xgboost, scikit-learn) in a process of its own",
            "or give it one thread: faiss.omp_set_num_threads(1), OMP_NUM_THREADS=1",
            "save a checkpoint before each search",
            "install torch and the other library from one source (conda-forge), so that they share a runtime",
            f"not {HIDES}=TRUE: it hides this, and may give wrong numbers",
        ],
    )


def _traces(state: RunState, gone: AttemptEnded) -> list[str]:
    """What points to it without the runtime's own word. On a machine that is no Mac that is not enough."""
    if on_mps(state) is False:
        return []
    found = [line for pattern in _TRACES if (line := match_output(gone, pattern))]
    environment = state.started.environment if state.started is not None else {}
    if environment.get(HIDES, "").upper() in ("TRUE", "1", "YES", "ON"):
        found.append(f"{HIDES}={environment[HIDES]}: somebody has met this before")
    return found


_HINT = (
    "OMP: Hint This means that multiple copies of the OpenMP runtime have been linked into the program. That is dangerous, "
    "since it can degrade performance or cause incorrect results."
)
_SAID = ("OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.", _HINT)
_FAULT_HANDLER = (
    "Fatal Python error: Segmentation fault",
    "Current thread 0x000000020534cf40 (most recent call first):",
    '  File "/venv/lib/python3.11/site-packages/faiss/swigfaiss.py", line 11441 in search',
)

RULE = Rule(
    id="openmp-duplicate",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=65,
    cases=[
        Case("abort", [*on_mac(), *losses(1.0), *ended(signal="SIGABRT", words=_SAID)], "fatal"),
        Case("134 through a shell", [*on_mac(), *ended(134, words=[*_SAID, "Abort trap: 6"])], "fatal"),
        Case(
            "on Linux, with mixed sources",
            [*started(), *ended(signal="SIGABRT", words=[_SAID[0].replace("dylib", "so")])],
            "fatal",
        ),
        Case("a crash inside of FAISS on a Mac", [*on_mac(), *ended(signal="SIGSEGV", words=_FAULT_HANDLER)], "fatal"),
        Case(
            "a crash on a Mac where the message was hidden",
            [*on_mac(environment={HIDES: "TRUE"}), *losses(1.0), *ended(139)],
            "fatal",
        ),
        Case("from a log, exit status unknown but not 0", [*unknown_machine(), *ended(None, words=_SAID)], "fatal"),
        Case("a crash on a Mac that points to nothing", [*on_mac(), *ended(signal="SIGSEGV")], None),
        Case("a crash inside of FAISS on Linux", [*started(), *ended(signal="SIGSEGV", words=_FAULT_HANDLER)], None),
        Case(
            "a worker printed it, the training raised something else",
            [*on_mac(), *ended(1, words=[*_SAID, *TRACEBACK, "ValueError: no"])],
            None,
        ),
        Case("it was printed, and the run went well", [*on_mac(), *ended(0, words=_SAID)], None),
    ],
)
