"""Why an attempt ended: the rule that best explains it, and whether the same would happen again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import exception_words
from holdfast.diagnosis.rules import by_id

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState

UNSEEN_PROGRESS_S = 60.0
"""If steps cannot be observed, an attempt that ran at least this long is assumed to have made progress."""
_TRANSIENT = re.compile(
    r"Connection (reset|refused|aborted|timed out)|Temporary failure in name resolution|Read timed out|"
    r"Resource temporarily unavailable|Address already in use|Too many requests|Service Unavailable|"
    r"CUDA error: (all CUDA-capable devices are busy|unspecified launch failure)",
    re.IGNORECASE,
)


def cause_of(attempt: AttemptState) -> str | None:
    """Return the rule that best explains why an attempt ended."""
    rules = by_id()
    if attempt.ended is not None and attempt.ended.rule in rules:
        return attempt.ended.rule
    explaining = [
        rule for finding in attempt.findings if (rule := rules.get(finding.rule)) and finding.severity == "fatal"
    ]
    best = max(explaining, key=lambda rule: rule.cause, default=None)
    return best.id if best is not None and best.cause else None


def is_external(cause: str | None) -> bool:
    """Return whether a cause is unrelated to the training itself."""
    rule = by_id().get(cause or "")
    return rule is not None and rule.external


def is_out_of_attempts(attempt: AttemptState) -> bool:
    """Return whether only the limit on attempts prevents another start."""
    return attempt.decision is not None and attempt.decision.stop_reason == "no-attempt-left"


def is_mistake(attempt: AttemptState) -> bool:
    """Return whether an attempt failed before the first step, for a reason that is not transient."""
    resume, rule = attempt.started.resume, by_id().get(cause_of(attempt) or "")
    if attempt.ended is None or attempt.steps or rule is None:
        return False
    # Another attempt may use another file, but only if Holdfast chose this one.
    corrupt = rule.id == "checkpoint-torn" and (resume is None or resume.checkpoint is None)
    if not rule.fails_again and not corrupt:
        return False
    unseen = attempt.attached is None and attempt.ended.seconds > UNSEEN_PROGRESS_S
    return not unseen and not any(_TRANSIENT.search(line) for line in exception_words(attempt.ended))
