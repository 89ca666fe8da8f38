"""Transformers logs a loss of 0 that really is NaN.

**What it means.** `{'loss': 0.0, 'grad_norm': nan, ...}`: the Trainer replaces a loss that is not finite by the mean of the ones
before it (`logging_nan_inf_filter=True` is its default), and by 0 where there was none since the last line. The log and every
tracker show a fine curve; backward and step were done with NaN all the same, and the weights are NaN from then on.

**Why it happens.** float16 without a scaler, a learning rate that is too high, batches in which no token has a label, weights
that were NaN to begin with.

**What to do.** `logging_nan_inf_filter=False`, so that the log says what is; bfloat16 or float32 in place of float16; look at the
first batch that gives it. Checkpoints from before the first such line are good, later ones are not.

**When it is fatal.** Where the last log lines before the end, three at least, all say so. While it runs it is a warning: with
a gradient scaler single such steps are skipped and do no harm. The losses themselves, where the probe sees them, are
judged by `loss-not-finite`.

Sources: Transformers' `trainer.py` and `logging_nan_inf_filter`; transformers#13619, trl#6702, LLaMA-Factory#3308.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains
from holdfast.testing.signatures import printed

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

ID = "nan-logged-as-zero"
WORDS = (r"'loss': 0\.0, 'grad_norm': nan", r"'loss': '0', 'grad_norm': 'nan'")
_MASKED = re.compile("|".join(WORDS))
_LOGGED = re.compile(r"'loss': ")
LIMITS = {"last_lines": 3}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    line = attempt.printed.get(ID)
    logged = _last_logged(attempt)
    masked = [text for text in logged if _MASKED.search(text)]
    if line is None and not masked:
        return None
    recovered = attempt.loss.count > 0 and not attempt.loss.nonfinite_in_a_row
    to_the_end = len(logged) >= state.tuned(ID, LIMITS)["last_lines"] and len(masked) == len(logged)
    count = max(line.count if line is not None else 0, len(masked))
    return Finding(
        rule=ID,
        severity="fatal" if to_the_end and not recovered else "warn",
        message="The log says that the loss is 0, and that the gradient is NaN: the loss is NaN, and Transformers does not "
        "show it" + ("; it stayed so to the end." if to_the_end else "."),
        evidence=[
            masked[-1].strip() if masked else line.text if line is not None else "",
            f"{count} such lines so far",
        ],
        remedies=[
            "see the true loss: logging_nan_inf_filter=False",
            "train in bf16 or float32 in place of fp16",
            "look for batches in which no token has a label (all labels -100)",
            "a lower learning rate; clip gradients (max_grad_norm=1.0)",
        ],
    )


def _last_logged(attempt: AttemptState) -> list[str]:
    if attempt.ended is None:
        return []
    return [text for text in attempt.ended.last_words if _LOGGED.search(text)][-20:]


_SAID = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.0005142857142857142, 'epoch': 0.01}"
_NEWER = "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '0.0005143', 'epoch': '0.01'}"
_GOOD = "{'loss': 2.2549, 'grad_norm': 1.5, 'learning_rate': 0.0005, 'epoch': 0.02}"

RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    words=WORDS,
    cases=[
        Case("while it trains, unseen by the probe", [*started(), *printed(ID, _SAID, stream="stdout")], "warn"),
        Case("a log that ends like this", [*started(), *ended(0, words=[_SAID] * 4)], "fatal"),
        Case("as newer versions write it", [*started(), *ended(0, words=[_NEWER] * 4)], "fatal"),
        Case(
            "one step among good ones, skipped by a scaler",
            [
                *started(),
                *trains(),
                *losses(2.3, "nan", 2.2, 2.1),
                *printed(ID, _SAID, stream="stdout"),
                *ended(0, words=[_GOOD, _SAID, _GOOD, _GOOD]),
            ],
            "warn",
        ),
        Case("a healthy log", [*started(), *ended(0, words=[_GOOD] * 5)], None),
        Case(
            "a task that is solved",
            [
                *started(),
                *ended(0, words=["{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 0.0005, 'epoch': 9.0}"] * 5),
            ],
            None,
        ),
    ],
)
