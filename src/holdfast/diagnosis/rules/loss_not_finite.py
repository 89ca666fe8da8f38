"""The loss became NaN or infinite.

**What it means.** An optimizer step on a non-finite loss makes the weights non-finite, and then every later loss too.
From that step on, the run only wastes time.

**Why it happens.** Possible causes are a learning rate that is too high, overflow in half precision, a division by zero
or a logarithm of zero in the loss, corrupt inputs, or a device whose work was aborted (`command buffer exited with
error status` on MPS).

**What to do.** Resume from the last checkpoint saved before the first NaN. Halve the learning rate or add warm-up, and
clip gradients. Find the batch that causes the NaN: `torch.autograd.set_detect_anomaly(True)` names the operation, but
slows down training.

**Severity.** A single non-finite loss is reported as `warn`, because gradient scalers and some trainers recover from
it. Five non-finite losses in a row are reported as `fatal`, and so is a non-finite training loss in the last two epochs
if only the losses of whole epochs are known.

**When it is not reported.** If only the losses of whole epochs are known, a single epoch with a non-finite loss is not
reported.

Sources: pytorch#123171, pytorch#125954. Ultralytics' own recovery checks only the last batch of an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.hints import suggest_earlier_checkpoint, suggest_lower_rate
from holdfast.diagnosis.remedy_ids import NOT_FINITE
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains, window

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

LIMITS = {"in_a_row": 5}
EPOCHS = 2
INPUTS = "check the inputs of that batch: do they contain NaN or infinity, or lead to a division by zero?"
HALVE = "halve the learning rate, or add warm-up"
CLIP = "clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)"


def judge(state: RunState) -> Finding | None:
    loss = state.attempt.loss
    if not loss.nonfinite:
        return _judge_epochs(state)
    is_lasting = loss.nonfinite_in_a_row >= state.get_limits("loss-not-finite", LIMITS)["in_a_row"]
    return Finding(
        severity="fatal" if is_lasting else "warn",
        step=loss.nonfinite_since if is_lasting else loss.last_nonfinite_step,
        corrupt_from=loss.nonfinite_since if is_lasting else None,
        message=(
            f"The loss has not been finite since step {loss.nonfinite_since}: the weights are corrupt from that step on."
            if is_lasting
            else f"The loss was not finite at step {loss.last_nonfinite_step}."
        ),
        evidence=[f"{loss.nonfinite} losses were NaN or infinite, the last {loss.nonfinite_in_a_row} in a row"],
        remedies=_select_remedies(state, loss.nonfinite_since if is_lasting else loss.last_nonfinite_step),
    )


def _select_remedies(state: RunState, since: int | None) -> list[str]:
    rate_advice = suggest_lower_rate(state.attempt, since)
    return [
        *(rate_advice or [INPUTS, HALVE]),
        CLIP,
        *([INPUTS] if rate_advice else []),
        *suggest_earlier_checkpoint(state, since),
    ]


def _make_epoch(epoch: int, loss: float | str) -> events.AnyEvent:
    return events.Metrics(at=float(epoch), step=0, epoch=epoch, values={"loss": loss}, source="log")


def _judge_epochs(state: RunState) -> Finding | None:
    """Judge the training loss of the newest epochs, if only whole epochs are known."""
    metrics = state.attempt.metrics
    if not metrics.history or metrics.epochs_not_finite < EPOCHS:
        return None
    epochs = metrics.history[-metrics.epochs_not_finite :]
    since = epochs[0].epoch or len(metrics.history) - len(epochs) + 1
    return Finding(
        severity="fatal",
        message=f"The loss has not been finite since epoch {since}: the weights are corrupt from that epoch on.",
        evidence=[f"a training loss was NaN or infinite in each of the last {len(epochs)} epochs"],
        remedies=_select_remedies(state, epochs[0].step or None),
        corrupt_from=epochs[0].step or None,
    )


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.Metrics),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    suspects_device=True,
    in_dry_run=True,
    remedies=NOT_FINITE,
    cases=lambda: [
        Case("NaN that persists", [*started(), *trains(), *losses(1.0, 0.9, *["nan"] * 5)], "fatal"),
        Case("one infinite loss", [*started(), *losses(1.0, "inf", 0.9)], "warn"),
        Case("a long sequence of NaN losses", [*started(), *losses(1.0), *window(2, 40, 0.0, nonfinite=39)], "fatal"),
        Case(
            "a log with one loss per epoch, NaN starting in the third epoch",
            [*started(), *(_make_epoch(n, 1.0 if n < 3 else "nan") for n in range(1, 6))],
            "fatal",
        ),
        Case(
            "a log with one loss per epoch, NaN in one epoch",
            [*started(), _make_epoch(1, "nan"), _make_epoch(2, 0.9)],
            None,
        ),
        Case(
            "one NaN long ago, and a new one that persists",
            [*started(), *losses(1.0, "nan", *[0.9] * 20, *["nan"] * 5)],
            "fatal",
        ),
        Case("a large but finite loss", [*started(), *losses(1e30, 1e34, 5.0)], None),
        Case("a loss below zero", [*started(), *losses(-1.0, -2.0)], None),
    ],
)
