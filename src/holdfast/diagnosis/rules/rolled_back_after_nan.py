"""Ultralytics met NaN and went back to its last checkpoint, or could not.

**What it means.** `Loss NaN/Inf detected (attempt 1/3), recovering from last.pt...`: the loss of an epoch's last batch, or the
fitness, was not finite. Ultralytics loads `last.pt` and trains that epoch again, up to three times, then gives up (`NaN
persisted for 4 epochs`). In the first epoch there is nothing to go back to, and it goes on with NaN.

**Why it happens.** A learning rate that is too high, mixed precision that overflows, a device that computes wrong numbers. What
is repeated unchanged mostly fails again.

**Beware.** `last.pt` is the averaged model in half precision, not the live one: what is trained from there is another run. And
NaN weights are saved as zeros (`nan_to_num_`), so that a spoiled checkpoint looks finite.

**What to do.** `amp=False`; half the learning rate (`optimizer=AdamW lr0=...`: with `optimizer=auto` lr0 is ignored); a few steps on
the CPU to tell a device's fault from the training's.

Sources: `ultralytics/engine/trainer.py` (`_handle_nan_recovery`, `save_model`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains
from holdfast.testing.signatures import printed, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "rolled-back-after-nan"
WORDS = (
    r"Loss NaN/Inf detected (?:\(attempt \d+/\d+\), recovering from|but can not recover from) last\.pt",
    r"Fitness NaN/Inf detected (?:\(attempt \d+/\d+\), recovering from|but can not recover from) last\.pt",
)
_GAVE_UP = (
    r"Training failed: NaN persisted for \d+ epochs",
    r"is corrupted with NaN/Inf weights",
    r"NaN/Inf detected but no valid last\.pt is available",
)


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    gone = find_failure(state)
    words = match_exception(gone, *_GAVE_UP) if gone is not None else None
    line = attempt.printed.get(ID)
    if words is None and line is None:
        return None
    if words is not None:
        message = f"Ultralytics gave up {describe_position(attempt)}: NaN came again after each return to last.pt."
    elif line is not None and "can not recover" in line.text:
        message = "Ultralytics met NaN in its first epoch, has nothing to go back to, and goes on with it."
    else:
        message = "Ultralytics met NaN and went back to last.pt: what follows is no longer the run that was begun."
    return Finding(
        rule=ID,
        severity="fatal" if words else "warn",
        message=message,
        evidence=[
            *([words] if words else []),
            *([line.text, f"said {line.count} time(s)"] if line is not None else []),
        ],
        remedies=[
            "train without mixed precision: amp=False",
            "a lower learning rate, with the optimizer named: optimizer=AdamW lr0=0.0005 (optimizer=auto ignores lr0)",
            "a few steps with device=cpu: if they are finite, the device is at fault",
        ],
    )


_SAID = "WARNING ⚠️ Loss NaN/Inf detected (attempt 1/3), recovering from last.pt..."

RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    page=__doc__ or "",
    words=WORDS,
    cause=58,
    cases=[
        Case("once", [*started(), *trains(), *losses(1.0, "nan", 0.9), *printed(ID, _SAID, stream="stdout")], "warn"),
        Case(
            "in the first epoch",
            [
                *started(),
                *printed(ID, "WARNING ⚠️ Loss NaN/Inf detected but can not recover from last.pt...", stream="stdout"),
            ],
            "warn",
        ),
        Case(
            "it gave up",
            [
                *started(),
                *trains(),
                *losses(1.0, "nan"),
                *printed(ID, _SAID, count=2),
                *raises("RuntimeError: Training failed: NaN persisted for 4 epochs"),
            ],
            "fatal",
        ),
        Case("a run without it", [*started(), *trains(), *losses(1.0), *ended(0)], None),
    ],
)
