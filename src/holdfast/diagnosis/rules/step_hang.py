"""The training stands still.

**What it means.** No step, no batch, no output for far longer than this run has ever paused before, and two dumps of all
stacks, taken apart, are the same. It will not go on by itself.

**Why it happens.** A data-loader worker that died or deadlocked after a fork, a collective that waits for a rank that is
gone, a device that never answers, a full pipe, a lock.

**What to do.** The stacks say where. With loader workers in them: workers=0, or spawn instead of fork. With a collective:
look for the rank that died. Holdfast ends the attempt and starts the next one.

**When it stays silent.** A machine that slept or was suspended, a terminal that is paused, and a run that is only slow: the
bound is learned from the run's own longest pause.
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
            f"The training stands still {describe_position(attempt)}: nothing happened for {attempt.no_progress.seconds:.0f} s, "
            f"and every thread stands where it stood before."
        ),
        evidence=[
            f"no step, fetch or output for {attempt.no_progress.seconds:.0f} s; this run's bound is {attempt.no_progress.bound:.0f} s",
            *(f"stack: {frame}" for frame in frames[:5]),
        ],
        remedies=[
            f"read attempts/{attempt.number}/stacks-{attempt.stacks.pid}.txt in the run folder: it says what each thread waits for",
            "if a data-loader worker is in them, use workers=0",
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
            "two equal dumps after a long silence",
            [*started(), *trains(), *losses(1.0), _QUIET, events.Stacks(at=430.0, pid=100, text=_STACK, same=True)],
            "fatal",
        ),
        Case(
            "the stacks moved: slow, not stuck",
            [*started(), *trains(), *losses(1.0), _QUIET, events.Stacks(at=430.0, pid=100, text=_STACK, same=False)],
            None,
        ),
    ],
)
