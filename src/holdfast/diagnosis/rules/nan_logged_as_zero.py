"""Transformers logs a loss of 0 that is really NaN.

**What it means.** The log shows `{'loss': 0.0, 'grad_norm': nan, ...}`. The Trainer replaces a non-finite loss with the
mean of the losses before it (`logging_nan_inf_filter=True` is the default), or with 0 if there was none since the last
log line. The log and every experiment tracker therefore show a clean curve. But the backward pass and the optimizer
step ran with NaN, and the weights are NaN from then on.

**Why it happens.** Possible causes are float16 without a gradient scaler, a learning rate that is too high, batches in
which no token has a label, or weights that were NaN from the start.

**What to do.** Set `logging_nan_inf_filter=False`, so that the log shows the real loss. Use bfloat16 or float32 instead
of float16. Inspect the first batch that produces NaN. Checkpoints saved before the first such line are good; later ones
are not.

**Severity.** It is reported as `fatal` when the run has ended and its last log lines, at least three, all show a loss
of 0 with a NaN gradient. During training it is reported as `warn`, because a gradient scaler skips single steps of this
kind without harm. If Holdfast can read the losses directly, `loss-not-finite` reports them too.

Sources: Transformers' `trainer.py` and `logging_nan_inf_filter`; transformers#13619, trl#6702, LLaMA-Factory#3308.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.signatures import printed

ID = "nan-logged-as-zero"
WORDS = (r"'loss': 0\.0, 'grad_norm': nan", r"'loss': '0', 'grad_norm': 'nan'")
_MASKED = re.compile("|".join(WORDS))
_LOGGED = re.compile(r"'loss': ")
LIMITS = {"last_lines": 3}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    line = attempt.printed.get(ID)
    log_lines = _find_last_log_lines(attempt)
    masked = [text for text in log_lines if _MASKED.search(text)]
    if line is None and not masked:
        return None
    has_recovered = attempt.loss.count > 0 and not attempt.loss.nonfinite_in_a_row
    until_end = len(log_lines) >= state.get_limits(ID, LIMITS)["last_lines"] and len(masked) == len(log_lines)
    count = max(line.count if line is not None else 0, len(masked))
    return Finding(
        severity="fatal" if until_end and not has_recovered else "warn",
        message="The log shows a loss of 0 with a NaN gradient: the loss is NaN, and Transformers hides it"
        + (", up to the end of the log." if until_end else "."),
        evidence=[
            masked[-1].strip() if masked else line.text if line is not None else "",
            f"{count} such lines so far",
        ],
        remedies=[
            "show the real loss: logging_nan_inf_filter=False",
            "train in bf16 or float32 instead of fp16",
            "check for batches in which no token has a label (all labels -100)",
            "lower the learning rate; clip gradients (max_grad_norm=1.0)",
        ],
    )


def _find_last_log_lines(attempt: AttemptState) -> list[str]:
    if attempt.ended is None:
        return []
    return [text for text in attempt.ended.last_lines if _LOGGED.search(text)][-20:]


_LINE = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.0005142857142857142, 'epoch': 0.01}"
_NEWER_LINE = "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '0.0005143', 'epoch': '0.01'}"
_GOOD_LINE = "{'loss': 2.2549, 'grad_norm': 1.5, 'learning_rate': 0.0005, 'epoch': 0.02}"

RULE = Rule(
    kind="learning",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    words=WORDS,
    in_dry_run=True,
    cases=lambda: [
        Case(
            "a log line during training, and the losses themselves are unknown",
            "warn",
            printed(ID, _LINE, stream="stdout"),
        ),
        Case("a log that ends with such lines", "fatal", ended(0, words=[_LINE] * 4)),
        Case("the format of newer versions", "fatal", ended(0, words=[_NEWER_LINE] * 4)),
        Case(
            "one step among good ones, skipped by a gradient scaler",
            "warn",
            trains(),
            losses(2.3, "nan", 2.2, 2.1),
            printed(ID, _LINE, stream="stdout"),
            ended(0, words=[_GOOD_LINE, _LINE, _GOOD_LINE, _GOOD_LINE]),
        ),
        Case("a healthy log", None, ended(0, words=[_GOOD_LINE] * 5)),
        Case(
            "a task that is solved",
            None,
            ended(0, words=["{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 0.0005, 'epoch': 9.0}"] * 5),
        ),
    ],
)
