"""Ultralytics encountered NaN and returned to its last checkpoint, or could not.

**What it means.** Ultralytics printed `Loss NaN/Inf detected (attempt 1/3), recovering from last.pt...`: the loss of
the last batch of an epoch, or the fitness, was not finite. Ultralytics loads `last.pt` and repeats that epoch up to
three times, then gives up (`NaN persisted for 4 epochs`). In the first epoch there is no checkpoint to return to, and
it continues with NaN.

**Why it happens.** Possible causes are a learning rate that is too high, overflow in mixed precision, or a device that
computes wrong numbers. Repeating the epoch without a change usually fails again.

**Caution.** `last.pt` contains the averaged model (EMA) in half precision, not the model that was being trained, so
resuming from it does not continue the same run. NaN weights are saved as zeros (`nan_to_num_`), so a corrupt checkpoint
looks finite.

**What to do.** Set `amp=False`. Halve the learning rate, and name the optimizer (`optimizer=AdamW lr0=...`), because
`optimizer=auto` ignores `lr0`. Run a few steps with `device=cpu`: if the losses are finite there, the device is the
cause; if not, the settings or the data are.

**Severity.** It is reported as `fatal` if Ultralytics gave up, and as `warn` otherwise.

Sources: `ultralytics/engine/trainer.py` (`_handle_nan_recovery`, `save_model`).
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.remedy_ids import NOT_FINITE
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.signatures import printed, raises

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
    end = find_failure(state)
    words = match_exception(end, *_GAVE_UP) if end is not None else None
    line = attempt.printed.get(ID)
    if words is None and line is None:
        return None
    if words is not None:
        message = f"Ultralytics gave up {describe_position(attempt)}: NaN occurred again after each return to last.pt."
    elif line is not None and "can not recover" in line.text:
        message = (
            "Ultralytics encountered NaN in its first epoch, has no checkpoint to return to, and continues with NaN."
        )
    else:
        message = "Ultralytics encountered NaN and returned to last.pt, which does not continue the same run exactly."
    return Finding(
        severity="fatal" if words else "warn",
        message=message,
        evidence=[
            *([words] if words else []),
            *([line.text, f"printed {line.count} time(s)"] if line is not None else []),
        ],
        remedies=[
            "train without mixed precision: amp=False",
            "lower the learning rate, and name the optimizer: optimizer=AdamW lr0=0.0005 (optimizer=auto ignores lr0)",
            "run a few steps with device=cpu: if the losses are finite there, the device is the cause",
        ],
    )


_LINE = "WARNING ⚠️ Loss NaN/Inf detected (attempt 1/3), recovering from last.pt..."

RULE = Rule(
    kind="learning",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    words=WORDS,
    cause=58,
    corrupts_state=True,
    remedies=NOT_FINITE,
    cases=lambda: [
        Case("NaN in one epoch", "warn", trains(), losses(1.0, "nan", 0.9), printed(ID, _LINE, stream="stdout")),
        Case(
            "NaN in the first epoch",
            "warn",
            printed(ID, "WARNING ⚠️ Loss NaN/Inf detected but can not recover from last.pt...", stream="stdout"),
        ),
        Case(
            "Ultralytics gave up",
            "fatal",
            trains(),
            losses(1.0, "nan"),
            printed(ID, _LINE, count=2),
            raises("RuntimeError: Training failed: NaN persisted for 4 epochs"),
        ),
        Case("a run without NaN", None, trains(), losses(1.0), ended(0)),
    ],
)
