"""Two OpenMP runtimes in one process aborted or crashed it.

**What it means.** torch ships an OpenMP runtime, and so does another library in the same process (FAISS, xgboost,
OpenCV, scikit-learn). Their threads interfere with each other's memory. The second runtime either detects this and
aborts the process (`OMP: Error #15`, exit status 134), or does not detect it, and the process crashes (SIGSEGV) when
both run at the same time.

**Why it happens.** On macOS, each wheel ships its own `libomp.dylib`. On Linux, this happens only if packages come from
different sources (conda and pip).

**Common misdiagnoses.** Gradient accumulation on MPS and `empty_cache()` are sometimes blamed. The time of such a crash
is random, so two runs of each variant prove nothing. In one reported case, runs with less accumulation crashed too, and
so did a run on the CPU. The signal and the last lines of output identify the cause directly.

**What to do.** Run the other library in a separate process, or with one thread (`faiss.omp_set_num_threads(1)`). If you
use FAISS, save a checkpoint before each search. `KMP_DUPLICATE_LIB_OK=TRUE` only hides the message: the process may
still crash later or compute wrong numbers.

**Confidence.** The finding is `proven` if the output contains `OMP: Error #15`. It is `likely` if a process crashed on
macOS and its last lines of output mention FAISS or an OpenMP runtime, or if `KMP_DUPLICATE_LIB_OK` is set.

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
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.diagnosis.versions import on_mps
from holdfast.schema import events
from holdfast.testing.histories import TRACEBACK, ended, losses
from holdfast.testing.signatures import on_mac, unknown_machine

if TYPE_CHECKING:
    from holdfast.schema.events import AttemptEnded

_ERROR = r"OMP: Error #15: Initializing "
_TRACES = (r"\bfaiss\b|swigfaiss", r"\blibi?omp5?\b", r"\b__kmp_\w+")
HIDES = "KMP_DUPLICATE_LIB_OK"
_CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGTRAP")


def judge(state: RunState) -> Finding | None:
    end = find_failure(state)
    if end is None:
        return None
    crashed = killed_by(end) in _CRASHES
    words = match_output(end, _ERROR) if crashed or exception_line(end) is None else None
    traces = [words] if words else _find_traces(state, end) if crashed else []
    if not traces:
        return None
    return Finding(
        severity="fatal",
        confidence="proven" if words else "likely",
        message=f"Two OpenMP runtimes in one process {'aborted it' if words else 'most likely crashed it'} "
        f"{describe_position(state.attempt)}. Batch size, accumulation and cache clearing are not the cause.",
        evidence=[*traces, *quote_evidence(end)],
        remedies=[
            "run the other library (FAISS, xgboost, scikit-learn) in a separate process",
            "or limit it to one thread: faiss.omp_set_num_threads(1), OMP_NUM_THREADS=1",
            "save a checkpoint before each FAISS search",
            "install torch and the other library from one source (conda-forge), so that they share a runtime",
            f"do not set {HIDES}=TRUE: it hides the error, and results may be wrong",
        ],
    )


def _find_traces(state: RunState, end: AttemptEnded) -> list[str]:
    """Return the lines that suggest it without the runtime's own message. They prove nothing on machines other than Macs."""
    if on_mps(state) is False:
        return []
    lines = [line for pattern in _TRACES if (line := match_output(end, pattern))]
    environment = state.started.environment if state.started is not None else {}
    if environment.get(HIDES, "").upper() in ("TRUE", "1", "YES", "ON"):
        lines.append(f"{HIDES}={environment[HIDES]} is set: it hides this error")
    return lines


_HINT = (
    "OMP: Hint This means that multiple copies of the OpenMP runtime have been linked into the program. That is dangerous, "
    "since it can degrade performance or cause incorrect results."
)
_MESSAGES = ("OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.", _HINT)
_FAULT_HANDLER = (
    "Fatal Python error: Segmentation fault",
    "Current thread 0x000000020534cf40 (most recent call first):",
    '  File "/venv/lib/python3.11/site-packages/faiss/swigfaiss.py", line 11441 in search',
)

RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=65,
    fails_again=True,
    remedies=("as-it-is", "one-thread"),
    cases=lambda: [
        Case(
            "the OpenMP runtime aborts the process",
            "fatal",
            on_mac(),
            losses(1.0),
            ended(signal="SIGABRT", words=_MESSAGES),
        ),
        Case("exit status 134 through a shell", "fatal", on_mac(), ended(134, words=[*_MESSAGES, "Abort trap: 6"])),
        Case("the same on Linux", "fatal", ended(signal="SIGABRT", words=[_MESSAGES[0].replace("dylib", "so")])),
        Case("a crash inside FAISS on a Mac", "fatal", on_mac(), ended(signal="SIGSEGV", words=_FAULT_HANDLER)),
        Case(
            "a crash on a Mac with the message hidden",
            "fatal",
            on_mac(environment={HIDES: "TRUE"}),
            losses(1.0),
            ended(139),
        ),
        Case("from a log, exit status unknown but not 0", "fatal", unknown_machine(), ended(None, words=_MESSAGES)),
        Case("a crash on a Mac without a trace of OpenMP", None, on_mac(), ended(signal="SIGSEGV")),
        Case("a crash inside FAISS on Linux", None, ended(signal="SIGSEGV", words=_FAULT_HANDLER)),
        Case(
            "a worker printed the error, and the script raised a different exception",
            None,
            on_mac(),
            ended(1, words=[*_MESSAGES, *TRACEBACK, "ValueError: no"]),
        ),
        Case("the error was printed and the run succeeded", None, on_mac(), ended(0, words=_MESSAGES)),
    ],
)
