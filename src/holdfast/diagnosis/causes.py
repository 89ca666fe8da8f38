"""Why an attempt ended: the rule that explains it best, and whether the same would happen again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import exception_words
from holdfast.diagnosis.rules import by_id

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState

UNSEEN_PROGRESS_S = 60.0
"""Where steps cannot be seen, an attempt that lived this long is taken to have made progress."""
MISTAKES = frozenset(
    (
        *("python-exception", "exit-status-not-zero", "device-out-of-memory", "labels-missing"),
        *("torchvision-mismatch", "op-not-implemented", "float64-unsupported", "watermark-invalid"),
        *("backward-view-incompatible", "fork-after-metal", "openmp-duplicate"),
    )
)
"""Ends that come again at the same place when they come before the first step."""
OUTSIDE = ("killed-externally",)
"""Ends that say nothing about the training: they spend attempts and nothing else."""
NO_ATTEMPT_LEFT, ONLY_ATTEMPT = "no attempt is left", "it was the only attempt"
_TRANSIENT = re.compile(
    r"Connection (reset|refused|aborted|timed out)|Temporary failure in name resolution|Read timed out|"
    r"Resource temporarily unavailable|Address already in use|Too many requests|Service Unavailable|"
    r"CUDA error: (all CUDA-capable devices are busy|unspecified launch failure)",
    re.IGNORECASE,
)


def cause_of(attempt: AttemptState) -> str | None:
    """The rule that explains best why an attempt ended."""
    rules = by_id()
    stopped_by = attempt.ended.stopped_by if attempt.ended is not None else None
    if stopped_by in rules:
        return stopped_by
    explaining = [
        rule for finding in attempt.findings if (rule := rules.get(finding.rule)) and finding.severity == "fatal"
    ]
    best = max(explaining, key=lambda rule: rule.cause, default=None)
    return best.id if best is not None and best.cause else None


def is_out_of_attempts(attempt: AttemptState) -> bool:
    """Nothing but the number of attempts keeps it from being started again."""
    return attempt.decision is not None and attempt.decision.why.startswith((NO_ATTEMPT_LEFT, ONLY_ATTEMPT))


def is_mistake(attempt: AttemptState) -> bool:
    """It failed before the first step, and not for a reason that passes."""
    resume = attempt.started.resume
    # Another attempt may take another file, but only if Holdfast chose this one.
    torn = cause_of(attempt) == "checkpoint-torn" and (resume is None or resume.checkpoint is None)
    if attempt.ended is None or attempt.steps or (cause_of(attempt) not in MISTAKES and not torn):
        return False
    unseen = attempt.attached is None and attempt.ended.seconds > UNSEEN_PROGRESS_S
    return not unseen and not any(_TRANSIENT.search(line) for line in exception_words(attempt.ended))
