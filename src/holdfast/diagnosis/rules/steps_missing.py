"""The command succeeded, but did fewer steps or epochs than planned.

**What it means.** A scheduler or a trainer was created for more steps or epochs than were done. The learning rate is
then still high at the end, when it should have come down, or the training simply stopped early. The exit code does not
show this.

**Why it happens.** A scheduler built for `epochs * len(loader)` steps and stepped once per epoch: the classic case, in
which warm-up never ends. A total computed for a different batch size, accumulation or number of devices. A loader that
is shorter than expected. An exception that was caught around the training.

**What to do.** Call `scheduler.step()` as often as the scheduler was built for: after each `optimizer.step()`, or once
per epoch. Print the planned total next to `len(loader)`.

**What it needs to see.** A run that ended with exit code 0, and one of two signs: a scheduler with its own total
(OneCycleLR, CosineAnnealingLR, PolynomialLR, the schedules of transformers) that did less than 90% of it and still
existed at the end; or the planned epochs from an adapter.

**When it stays silent.** If the trainer or the output reports that it stopped early on purpose. On LinearLR and
ConstantLR, unless they were built for steps and stepped once per epoch (they are warm-up; their total is not the
training's). On schedulers that no longer existed at the end, because their count is not known. On a schedule that
continued past its total. If lines of Holdfast's own record are missing (the disk of the run folder was full), because
the steps cannot be counted.

Sources: transformers#33455 (total steps miscomputed, early end).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.record_gaps import gap_after
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started
from holdfast.testing.series import epoch, note, schedule, steps

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

LIMITS = {"share": 0.9}
EARLY_STOP = r"(?i:\bearly[ _-]?stop)"
ENDED_EARLY = "ended the training before its last epoch"
"""The note of an adapter when the trainer stopped early on purpose."""
WARM_UP = ("LinearLR", "ConstantLR")


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if not attempt.finished or _stopped_on_purpose(attempt) or gap_after(attempt) is not None:
        return None
    share = state.get_limits("steps-missing", LIMITS)["share"]
    return _judge_epochs(attempt) or _judge_schedules(attempt, share)


def _stopped_on_purpose(attempt: AttemptState) -> bool:
    words = attempt.ended.last_lines if attempt.ended is not None else []
    return (
        "steps-missing" in attempt.printed
        or any(ENDED_EARLY in note.what for note in attempt.notes)
        or any(re.search(EARLY_STOP, line) for line in words)
    )


def _judge_epochs(attempt: AttemptState) -> Finding | None:
    done, planned = attempt.epoch, attempt.planned_epochs
    if done is None or planned is None or done >= planned:
        return None
    return Finding(
        rule="steps-missing",
        severity="warn",
        message=f"The command ended with exit code 0 after {done} of {planned} epochs, and the trainer did not report that it "
        "stopped on purpose.",
        evidence=[f"epoch {done} of {planned} was the last one completed, at step {attempt.last_step}"],
        remedies=[
            "check for an exception that is caught around the training",
            "resume from the last checkpoint",
        ],
    )


def _judge_schedules(attempt: AttemptState, share: float) -> Finding | None:
    for scheduler in attempt.rates.schedules.values():
        planned, done = scheduler.planned, scheduler.done
        if planned is None or done is None or scheduler.step < attempt.last_step or done >= share * planned:
            continue
        is_stepped_by_epoch = _is_built_for_steps_stepped_by_epoch(attempt, planned, done)
        if scheduler.scheduler in WARM_UP and not is_stepped_by_epoch:
            continue
        why = (
            f": it was built for steps ({attempt.steps} were made) and is stepped once per epoch"
            if is_stepped_by_epoch
            else ": the learning rate did not reach its final value"
        )
        return Finding(
            rule="steps-missing",
            severity="warn",
            message=f"{scheduler.scheduler} was built for {planned} steps and did {done}{why}.",
            evidence=[
                f"{scheduler.scheduler}: {done} of {planned} steps done when the command ended with exit code 0",
                f"{attempt.steps} optimizer steps"
                + (f" in {attempt.epoch} epochs" if attempt.epoch else "")
                + (f", the last learning rate is {max(attempt.rates.latest):.3g}" if attempt.rates.latest else ""),
            ],
            remedies=[
                "call scheduler.step() after each optimizer.step(), or build the scheduler for the number of epochs"
                if is_stepped_by_epoch
                else "build the scheduler for the number of steps that it does: epochs, or epochs * len(loader) // accumulation",
                "if it stopped early on purpose, ignore this",
            ],
            confidence="proven" if is_stepped_by_epoch else "possible",
        )
    return None


def _is_built_for_steps_stepped_by_epoch(attempt: AttemptState, planned: int, done: int) -> bool:
    is_resumed = attempt.started.resume is not None and attempt.started.resume.checkpoint is not None
    return not is_resumed and 0.8 * attempt.steps <= planned and done <= 0.5 * attempt.steps


RULE = Rule(
    id="steps-missing",
    kind="proof",
    on=(events.AttemptEnded,),
    judge=judge,
    limits=LIMITS,
    words=(EARLY_STOP,),
    page=__doc__ or "",
    cases=[
        Case(
            "built for steps, stepped once per epoch",
            [
                *started(),
                *steps(*[1.0] * 300),
                *schedule("OneCycleLR", step=300, planned=300, done=3),
                *ended(0, last_step=300),
            ],
            "warn",
        ),
        Case(
            "half of a schedule was done",
            [
                *started(),
                *steps(*[1.0] * 200),
                *schedule("CosineAnnealingLR", step=200, planned=400, done=200),
                *ended(0, last_step=200),
            ],
            "warn",
        ),
        Case(
            "epochs are missing",
            [*started(), *epoch(4, step=40, planned=10, source="ultralytics"), *ended(0, last_step=40)],
            "warn",
        ),
        Case(
            "the trainer stopped early on purpose",
            [
                *started(),
                *epoch(4, step=40, planned=10, source="ultralytics"),
                *note("ultralytics ended the training before its last epoch", "epoch 4 of 10, patience 3"),
                *ended(0, last_step=40),
            ],
            None,
        ),
        Case(
            "a script that reports early stopping",
            [
                *started(),
                *steps(*[1.0] * 40),
                *schedule("CosineAnnealingLR", step=40, planned=100, done=40),
                *ended(0, last_step=40, words=["Early stopping at epoch 40"]),
            ],
            None,
        ),
        Case(
            "all planned steps are done",
            [
                *started(),
                *steps(*[1.0] * 100),
                *schedule("OneCycleLR", step=100, planned=100, done=99),
                *epoch(10, step=100, planned=10, source="ultralytics"),
                *ended(0, last_step=100),
            ],
            None,
        ),
        Case(
            "a warm-up longer than a short run",
            [
                *started(),
                *steps(*[1.0] * 30),
                *schedule("LinearLR", step=30, planned=5, done=3),
                *ended(0, last_step=30),
            ],
            None,
        ),
        Case(
            "a scheduler that no longer existed at the end",
            [
                *started(),
                *schedule("OneCycleLR", step=1, planned=100, done=1),
                *steps(*[1.0] * 100),
                *ended(0, last_step=100),
            ],
            None,
        ),
        Case(
            "a schedule of several cycles",
            [
                *started(),
                *steps(*[1.0] * 90),
                *schedule("CosineAnnealingLR", step=90, planned=30, done=90),
                *ended(0, last_step=90),
            ],
            None,
        ),
        Case(
            "a record that ends long before the training did",
            [
                *started(),
                *steps(*[1.0] * 40),
                *epoch(4, step=40, planned=10, source="ultralytics"),
                *schedule("OneCycleLR", step=40, planned=100, done=40),
                *ended(0, last_step=100),
            ],
            None,
        ),
        Case(
            "a record with missing lines",
            [
                *started(),
                *steps(*[1.0] * 40),
                *epoch(4, step=40, planned=10, source="ultralytics"),
                *note("events were lost: they could not be written", "60 lines"),
                *steps(1.0, first=100),
                *ended(0, last_step=100),
            ],
            None,
        ),
        Case(
            "the training failed (covered by other rules)",
            [*started(), *epoch(4, step=40, planned=10, source="ultralytics"), *ended(1, last_step=40)],
            None,
        ),
    ],
)
