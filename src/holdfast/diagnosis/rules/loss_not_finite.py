"""The loss became NaN or infinite.

**What it means.** One non-finite loss that is stepped on makes the weights non-finite, and then every loss after it. From
there the run only costs time.

**Why it happens.** A learning rate that is too high, an overflow in half precision, a division by zero or a logarithm of
zero in the loss, broken inputs, or a device whose work was cut short (`command buffer exited with error status` on MPS).

**What to do.** Go back to the last checkpoint before it; halve the learning rate or add warm-up; clip gradients; look for
the batch. `torch.autograd.set_detect_anomaly(True)` names the operation, at a price.

**When it stays silent.** A single one is a warning only: gradient scalers and some trainers recover from it. Five in a row
do not come back.

Sources: pytorch#123171, pytorch#125954; Ultralytics' own recovery looks at the last batch of an epoch only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.suggestions import suggest_earlier_checkpoint, suggest_lower_rate
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains, window

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

LIMITS = {"in_a_row": 5}
EPOCHS = 2
INPUTS = "look at the inputs of that batch: is there a NaN, an infinity, or a division by zero in them?"
HALVE = "halve the learning rate, or add warm-up"
CLIP = "clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)"


def judge(state: RunState) -> Finding | None:
    loss = state.attempt.loss
    if not loss.nonfinite:
        return _by_epoch(state)
    lasting = loss.nonfinite_in_a_row >= state.tuned("loss-not-finite", LIMITS)["in_a_row"]
    return Finding(
        rule="loss-not-finite",
        severity="fatal" if lasting else "warn",
        step=loss.nonfinite_since if lasting else loss.last_nonfinite_step,
        corrupt_from=loss.nonfinite_since if lasting else None,
        message=(
            f"The loss is not finite since step {loss.nonfinite_since}: the weights are lost from there on."
            if lasting
            else f"The loss was not finite at step {loss.last_nonfinite_step}."
        ),
        evidence=[f"{loss.nonfinite} losses were NaN or infinite, the last {loss.nonfinite_in_a_row} in a row"],
        remedies=_remedies(state, loss.nonfinite_since if lasting else loss.last_nonfinite_step),
    )


def _remedies(state: RunState, since: int | None) -> list[str]:
    lower = suggest_lower_rate(state.attempt, since)
    return [*(lower or [INPUTS, HALVE]), CLIP, *([INPUTS] if lower else []), *suggest_earlier_checkpoint(state, since)]


def _epoch_loss(epoch: int, loss: float | str) -> events.AnyEvent:
    return events.Metrics(at=float(epoch), step=0, epoch=epoch, values={"loss": loss}, source="log")


def _by_epoch(state: RunState) -> Finding | None:
    """Where only whole epochs are known: the loss of the training in the newest ones."""
    metrics = state.attempt.metrics
    if not metrics.history or metrics.epochs_not_finite < EPOCHS:
        return None
    epochs = metrics.history[-metrics.epochs_not_finite :]
    since = epochs[0].epoch or len(metrics.history) - len(epochs) + 1
    return Finding(
        rule="loss-not-finite",
        severity="fatal",
        message=f"The loss is not finite since epoch {since}: the weights are lost from there on.",
        evidence=[f"a training loss was NaN or infinite in each of the last {len(epochs)} epochs"],
        remedies=_remedies(state, epochs[0].step or None),
        corrupt_from=epochs[0].step or None,
    )


RULE = Rule(
    id="loss-not-finite",
    kind="learning",
    on=(events.Step, events.Steps, events.Metrics),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("NaN and it stays", [*started(), *trains(), *losses(1.0, 0.9, *["nan"] * 5)], "fatal"),
        Case("one infinity", [*started(), *losses(1.0, "inf", 0.9)], "warn"),
        Case("a whole window of NaN", [*started(), *losses(1.0), *window(2, 40, 0.0, nonfinite=39)], "fatal"),
        Case(
            "a log of epochs, NaN from the third on",
            [*started(), *(_epoch_loss(n, 1.0 if n < 3 else "nan") for n in range(1, 6))],
            "fatal",
        ),
        Case("a log of epochs, one NaN", [*started(), _epoch_loss(1, "nan"), _epoch_loss(2, 0.9)], None),
        Case(
            "one long ago, and a new one that stays",
            [*started(), *losses(1.0, "nan", *[0.9] * 20, *["nan"] * 5)],
            "fatal",
        ),
        Case("large but finite", [*started(), *losses(1e30, 1e34, 5.0)], None),
        Case("below zero", [*started(), *losses(-1.0, -2.0)], None),
    ],
)
