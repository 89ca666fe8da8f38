"""The training hangs.

**What it means.** There was no step, no batch and no output for far longer than this run has ever paused before, and
two dumps of all stacks, taken some time apart, are the same. The training will not continue on its own.

**Why it happens.** A data-loader worker that died or deadlocked after a fork, a collective that waits for a rank that
has exited, a device that does not respond, a full pipe, or a lock.

**What to do.** The stacks show where it hangs. If loader workers are in them, use workers=0, or spawn instead of fork.
If a collective is in them, find the rank that exited. Holdfast stops the attempt and starts the next one.

**When it stays silent.** If the machine slept or was suspended, if the terminal is paused, and if the run is only slow:
the limit is derived from the longest pause of the run itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_QUIET = events.NoProgress(at=400.0, seconds=310.0, bound=300.0)
_STACK = 'Thread 0x01 (most recent call first):\n  File "/home/ann/train.py", line 12 in wait'


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if attempt.stacks is None or not attempt.stacks.same or attempt.no_progress is None:
        return None
    frames = [line.strip() for line in attempt.stacks.text.splitlines() if line.strip().startswith("File ")]
    return Finding(
        rule="step-hang",
        severity="fatal",
        message=(
            f"The training hangs {describe_position(attempt)}: nothing happened for {attempt.no_progress.seconds:.0f} s, "
            f"and no thread has moved."
        ),
        evidence=[
            f"no step, batch or output for {attempt.no_progress.seconds:.0f} s; the limit for this run is {attempt.no_progress.bound:.0f} s",
            *(f"stack: {frame}" for frame in frames[:5]),
        ],
        remedies=[
            f"read attempts/{attempt.number}/stacks-{attempt.stacks.pid}.txt in the run folder: it shows what each thread waits for",
            "if a data-loader worker is in the stacks, use workers=0",
        ],
    )


RULE = Rule(
    id="step-hang",
    kind="resources",
    on=(events.Stacks,),
    judge=judge,
    page=__doc__ or "",
    cause=90,
    cases=[
        Case(
            "two identical stack dumps after a long pause",
            [*started(), *trains(), *losses(1.0), _QUIET, events.Stacks(at=430.0, pid=100, text=_STACK, same=True)],
            "fatal",
        ),
        Case(
            "the stacks changed (slow, but not stuck)",
            [*started(), *trains(), *losses(1.0), _QUIET, events.Stacks(at=430.0, pid=100, text=_STACK, same=False)],
            None,
        ),
    ],
)
