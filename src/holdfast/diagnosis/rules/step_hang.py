"""The training process hangs.

**What it means.** There was no step, no batch and no output for far longer than this run has ever paused before, and
two dumps of all stacks, taken at least 30 seconds apart, are the same. The process will not continue on its own.

**Why it happens.** Possible causes are a `DataLoader` worker that died or deadlocked after a fork, a collective
operation that waits for a rank that has exited, a device that does not respond, a full pipe, or a lock.

**What to do.** The stacks show where the process hangs. If they contain `DataLoader` workers, use `num_workers=0`, or
start the workers with `spawn` instead of `fork`. If they contain a collective operation, find the rank that exited.
Holdfast stops the attempt and starts the next one.

**When it is reported.** The pause must last at least 300 seconds (`--hang-after`; 900 seconds before the first step)
and at least ten times as long as the longest pause so far in this run. If the processes still use the CPU, the pause
must be four times as long as that.

**Severity.** It is always reported as `fatal`.

**When it is not reported.** Nothing is reported while the machine sleeps or the process is suspended, while the
terminal is paused, or if the run is only slow.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import losses, trains

_QUIET = events.NoProgress(at=400.0, seconds=310.0, bound=300.0)
_STACK = 'Thread 0x01 (most recent call first):\n  File "/home/ann/train.py", line 12 in wait'


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if attempt.stacks is None or not attempt.stacks.same or attempt.no_progress is None:
        return None
    frames = [line.strip() for line in attempt.stacks.text.splitlines() if line.strip().startswith("File ")]
    return Finding(
        severity="fatal",
        message=(
            f"The training process hangs {describe_position(attempt)}: nothing happened for {attempt.no_progress.seconds:.0f} s, "
            f"and no thread has moved."
        ),
        evidence=[
            f"no step, batch or output for {attempt.no_progress.seconds:.0f} s; the limit for this run is {attempt.no_progress.bound:.0f} s",
            *(f"stack: {frame}" for frame in frames[:5]),
        ],
        remedies=[
            f"read attempts/{attempt.number}/stacks-{attempt.stacks.pid}.txt in the run folder: it shows what each thread is waiting for",
            "if a DataLoader worker is in the stacks, use num_workers=0",
        ],
    )


RULE = Rule(
    kind="resources",
    on=(events.Stacks,),
    judge=judge,
    cause=90,
    charts=("pace",),
    remedies=("no-workers", "as-it-is", "next-device"),
    cases=lambda: [
        Case(
            "two identical stack dumps after a long pause",
            "fatal",
            trains(),
            losses(1.0),
            _QUIET,
            events.Stacks(at=430.0, pid=100, text=_STACK, same=True),
        ),
        Case(
            "the stacks changed (slow, but not stuck)",
            None,
            trains(),
            losses(1.0),
            _QUIET,
            events.Stacks(at=430.0, pid=100, text=_STACK, same=False),
        ),
    ],
)
