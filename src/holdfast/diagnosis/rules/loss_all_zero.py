"""Every loss so far is exactly zero.

**What it means.** The loss has been exactly 0.0 in every step. There is nothing to learn from, so the model is the same
at the end as at the start, although the progress bar looks normal.

**Why it happens.** Common causes are a device bug that drops scalar assignments (on macOS 14.4 with torch 2.2, `x =
zeros(3); x[1] = 1` does not store the 1), a loss multiplied by an empty mask, or labels that match no prediction.

**What to do.** Run a few steps on the CPU (`device=cpu`, or `holdfast check --device cpu -- COMMAND`). If the loss is
not zero there, the device is the cause: use a newer torch, or train on the CPU. If it is zero there too, check that a
batch contains labels and that they match the model's classes.

**When it is reported.** It is reported if the loss was zero in the first 20 steps, or in all steps of a finished run
with at least three. If only the losses of epochs are known, at least two epochs are required.

**When it is not reported.** A loss that reaches zero after other values is ignored, because the task is solved.

**Severity.** The severity is `fatal`. Some losses are zero by construction and still have a gradient (`s - s.detach()`
in policy gradients and score distillation): if a nonzero gradient was observed, it is reported as a `note` and the run
continues.

Sources: pytorch#122016, pytorch#123385, ultralytics#9113, ultralytics#9933; in one reported case, 43 minutes of
training were lost.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains, window

LIMITS = {"steps": 20, "steps_of_a_whole_run": 3}
MIN_EPOCHS = 2


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    zeros = attempt.loss.zeros_at_first
    limits = state.get_limits("loss-all-zero", LIMITS)
    least = limits["steps_of_a_whole_run" if attempt.finished else "steps"]
    if not attempt.loss.count:
        return _report_by_epoch(attempt)
    if zeros != attempt.loss.count or attempt.loss.nonfinite or zeros < least:
        return None
    has_gradient = attempt.gradients.seen_nonzero
    return Finding(
        severity="note" if has_gradient else "fatal",
        message=f"The loss was exactly 0 in all {zeros} steps"
        + (
            "; its gradient was not, so this may be intended."
            if has_gradient
            else ": the model is not learning anything."
        ),
        evidence=[
            f"{zeros} of {zeros} losses are 0.0",
            "a nonzero gradient was observed" if has_gradient else "no nonzero gradient was observed",
        ],
        remedies=[
            "check that a batch contains labels and that they match the model's classes: an empty mask or labels that match no prediction give a loss of 0",
            *(["on macOS 14.4 with torch 2.2, install torch 2.3 or newer"] if state.on_macos else []),
            "if it trains on a GPU, run a few steps on the CPU: a loss that is not 0 there means that the device is the cause",
        ],
    )


def _report_by_epoch(attempt: AttemptState) -> Finding | None:
    """Report it from the losses of whole epochs, if no others are known."""
    zeros = attempt.metrics.epochs_of_zero_loss
    if zeros < MIN_EPOCHS or zeros != len(attempt.metrics.history):
        return None
    return Finding(
        severity="fatal",
        message=f"Every training loss was exactly 0 in all {zeros} epochs: the model is not learning anything.",
        evidence=[f"the losses of {zeros} of {zeros} epochs are 0.0"],
        remedies=[
            "check that a batch contains labels and that they match the model's classes: an empty mask or labels that match no prediction give a loss of 0",
            "run a few steps on the CPU: a loss that is not 0 there means that the device is the cause",
            "on macOS 14.4 with torch 2.2, install torch 2.3 or newer",
        ],
    )


def _zero_epochs(count: int) -> list[events.AnyEvent]:
    values: dict[str, float | str] = {"train/box_loss": 0.0, "train/cls_loss": 0.0}
    return [events.Metrics(at=float(n), step=0, epoch=n, values=values, source="log") for n in range(1, count + 1)]


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.Metrics, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    suspects_device=True,
    in_dry_run=True,
    remedies=("next-device",),
    cases=lambda: [
        Case("twenty steps with a loss of zero", "fatal", trains(), losses(*[0.0] * 20)),
        Case("a short run that was zero throughout", "fatal", losses(*[0.0] * 4), ended(0, last_step=4)),
        Case("64 losses of zero, reported together", "fatal", window(1, 64, 0.0, zeros=64)),
        Case(
            "zero by construction, with a gradient",
            "note",
            losses(*[0.0] * 5, grad_norm=3.1),
            losses(*[0.0] * 30, first=6),
        ),
        Case("zero with a gradient of zero", "fatal", losses(*[0.0] * 30, grad_norm=0.0)),
        Case("a results file with several epochs, all losses zero", "fatal", _zero_epochs(3)),
        Case("a results file with one epoch", None, _zero_epochs(1)),
        Case("too few steps", None, losses(*[0.0] * 19)),
        Case("solved: it fell to zero and stayed there", None, losses(2.0, 0.5, *[0.0] * 200)),
        Case("zero at first, then not", None, losses(*[0.0] * 15, 0.4, *[0.0] * 30)),
        Case("no loss is observed", None, ended(0, last_step=50)),
    ],
)
