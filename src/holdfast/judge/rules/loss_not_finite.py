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

from holdfast.judge.history import losses, started, trains, window
from holdfast.judge.rule import Case, Rule
from holdfast.words import events
from holdfast.words.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.judge.picture import Picture

LIMITS = {"in_a_row": 5}


def judge(picture: Picture) -> Finding | None:
    loss = picture.attempt.loss
    if not loss.bad:
        return None
    lasting = loss.bad_in_a_row >= picture.tuned("loss-not-finite", LIMITS)["in_a_row"]
    return Finding(
        rule="loss-not-finite",
        severity="fatal" if lasting else "warn",
        step=loss.first_bad_step,
        since=loss.first_bad_step,
        message=(
            f"The loss is not finite since step {loss.first_bad_step}: the weights are lost from there on."
            if lasting
            else f"The loss was not finite at step {loss.first_bad_step}."
        ),
        evidence=[f"{loss.bad} losses were NaN or infinite, the last {loss.bad_in_a_row} in a row"],
        remedies=[
            "go back to a checkpoint from before that step",
            "halve the learning rate, or add warm-up",
            "clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
        ],
    )


RULE = Rule(
    id="loss-not-finite",
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("NaN and it stays", [*started(), *trains(), *losses(1.0, 0.9, *["nan"] * 5)], "fatal"),
        Case("one infinity", [*started(), *losses(1.0, "inf", 0.9)], "warn"),
        Case("a whole window of NaN", [*started(), *losses(1.0), *window(2, 40, 0.0, bad=39)], "fatal"),
        Case("large but finite", [*started(), *losses(1e30, 1e34, 5.0)], None),
        Case("below zero", [*started(), *losses(-1.0, -2.0)], None),
    ],
)
