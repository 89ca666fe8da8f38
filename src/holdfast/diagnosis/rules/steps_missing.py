"""The command succeeded, but completed fewer steps or epochs than planned.

**What it means.** A scheduler or a trainer was created for more steps or epochs than were completed. The learning rate
is then still high at the end, when it should have decreased, or training simply stopped early. The exit status does not
show this.

**Why it happens.** Most often, a scheduler was created for `epochs * len(loader)` steps but is stepped once per epoch,
so that the schedule never gets past its start. Other causes are a total that was computed for a different batch size,
accumulation or number of devices, a loader that is shorter than expected, or an exception that was caught around the
training loop.

**What to do.** Make the number of `scheduler.step()` calls match the scheduler's total: call it after each
`optimizer.step()`, or create the scheduler for the number of epochs. Print the planned total next to `len(loader)`.

**When it is reported.** The run ended with exit status 0, and one of these conditions is met:

- A scheduler that has its own total (OneCycleLR, CosineAnnealingLR, PolynomialLR, the schedules of transformers)
  completed less than 90% of its steps and was not deleted before the end.
- A supported trainer (such as Ultralytics) planned more epochs than were completed.

**Severity.** It is always reported as `warn`.

**When it is not reported.** Nothing is reported in these cases:

- The trainer or the output states that it stopped early on purpose.
- The scheduler is LinearLR or ConstantLR, unless it was created for steps and is stepped once per epoch. These
  schedulers are used for warm-up, so their length is not the length of the run.
- The scheduler was deleted before the end: its step count is then unknown.
- The scheduler continued past its total.
- Events are missing from Holdfast's journal because the disk that contains the run folder was full, so the steps cannot
  be counted.

Sources: transformers#33455 (total steps miscomputed, early end).
"""

from __future__ import annotations

import re

from holdfast.diagnosis.record_gaps import gap_after
from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended
from holdfast.testing.series import FRAMEWORK, epoch, note, schedule, steps

LIMITS = {"share": 0.9}
EARLY_STOP = r"(?i:\bearly[ _-]?stop)"
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
        or attempt.has_note("stopped-early")
        or any(re.search(EARLY_STOP, line) for line in words)
    )


def _judge_epochs(attempt: AttemptState) -> Finding | None:
    done, planned = attempt.epoch, attempt.planned_epochs
    if done is None or planned is None or done >= planned:
        return None
    return Finding(
        severity="warn",
        message=f"The command ended with exit status 0 after {done} of {planned} epochs, and the trainer did not report that it "
        "stopped on purpose.",
        evidence=[f"epoch {done} of {planned} was the last one completed, at step {attempt.last_step}"],
        remedies=[
            "check for an exception that is caught around the training loop",
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
            f": it was created for steps (the optimizer made {attempt.steps}) but is stepped once per epoch"
            if is_stepped_by_epoch
            else ": the learning rate did not reach its final value"
        )
        return Finding(
            severity="warn",
            message=f"{scheduler.scheduler} was created for {planned} steps and made {done}{why}.",
            evidence=[
                f"{scheduler.scheduler}: {done} of {planned} steps done when the command ended with exit status 0",
                f"{attempt.steps} optimizer steps"
                + (f" in {attempt.epoch} epochs" if attempt.epoch else "")
                + (f", the last learning rate is {max(attempt.rates.latest):.3g}" if attempt.rates.latest else ""),
            ],
            remedies=[
                "call scheduler.step() after each optimizer.step(), or create the scheduler for the number of epochs"
                if is_stepped_by_epoch
                else "create the scheduler for the number of scheduler.step() calls: epochs, or epochs * len(loader) // accumulation",
                "if the run stopped early on purpose, ignore this finding",
            ],
            confidence="proven" if is_stepped_by_epoch else "possible",
        )
    return None


def _is_built_for_steps_stepped_by_epoch(attempt: AttemptState, planned: int, done: int) -> bool:
    is_resumed = attempt.started.resume is not None and attempt.started.resume.checkpoint is not None
    return not is_resumed and 0.8 * attempt.steps <= planned and done <= 0.5 * attempt.steps


RULE = Rule(
    kind="proof",
    on=(events.AttemptEnded,),
    judge=judge,
    limits=LIMITS,
    words=(EARLY_STOP,),
    contradicts=("planned-steps-done",),
    cases=lambda: [
        Case(
            "a scheduler that was created for steps is stepped once per epoch",
            "warn",
            steps(*[1.0] * 300),
            schedule("OneCycleLR", step=300, planned=300, done=3),
            ended(0, last_step=300),
        ),
        Case(
            "a scheduler completed half of its steps",
            "warn",
            steps(*[1.0] * 200),
            schedule("CosineAnnealingLR", step=200, planned=400, done=200),
            ended(0, last_step=200),
        ),
        Case("epochs are missing", "warn", epoch(4, step=40, planned=10, source=FRAMEWORK), ended(0, last_step=40)),
        Case(
            "the trainer stopped early on purpose",
            None,
            epoch(4, step=40, planned=10, source=FRAMEWORK),
            note("stopped-early", "epoch 4 of 10, patience 3"),
            ended(0, last_step=40),
        ),
        Case(
            "a script that reports early stopping",
            None,
            steps(*[1.0] * 40),
            schedule("CosineAnnealingLR", step=40, planned=100, done=40),
            ended(0, last_step=40, words=["Early stopping at epoch 40"]),
        ),
        Case(
            "all planned steps are done",
            None,
            steps(*[1.0] * 100),
            schedule("OneCycleLR", step=100, planned=100, done=99),
            epoch(10, step=100, planned=10, source=FRAMEWORK),
            ended(0, last_step=100),
        ),
        Case(
            "a warm-up longer than a short run",
            None,
            steps(*[1.0] * 30),
            schedule("LinearLR", step=30, planned=5, done=3),
            ended(0, last_step=30),
        ),
        Case(
            "a scheduler that was deleted before the end",
            None,
            schedule("OneCycleLR", step=1, planned=100, done=1),
            steps(*[1.0] * 100),
            ended(0, last_step=100),
        ),
        Case(
            "a schedule of several cycles",
            None,
            steps(*[1.0] * 90),
            schedule("CosineAnnealingLR", step=90, planned=30, done=90),
            ended(0, last_step=90),
        ),
        Case(
            "Holdfast's journal ends long before the run did",
            None,
            steps(*[1.0] * 40),
            epoch(4, step=40, planned=10, source=FRAMEWORK),
            schedule("OneCycleLR", step=40, planned=100, done=40),
            ended(0, last_step=100),
        ),
        Case(
            "events are missing from Holdfast's journal",
            None,
            steps(*[1.0] * 40),
            epoch(4, step=40, planned=10, source=FRAMEWORK),
            note("events-lost", "60 lines"),
            steps(1.0, first=100),
            ended(0, last_step=100),
        ),
        Case(
            "the command failed (covered by other rules)",
            None,
            epoch(4, step=40, planned=10, source=FRAMEWORK),
            ended(1, last_step=40),
        ),
    ],
)
