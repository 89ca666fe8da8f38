"""Remedies that change nothing: a new process resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, remedy_step

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

REPEATED = "the steps since the last good state are repeated"


@remedy_step(REPEATED)
def fresh_process(context: RemedyContext) -> Remedy | None:
    """Resume from the last good state without changes: memory that accumulated in the old process is free again. This is used
    each time that a state was saved and the attempt got further than all earlier ones.
    """
    # Without a saved state and progress, memory would fill up again in the same way.
    if not context.progressed or not context.kept:
        return None
    return Remedy(
        "Using a new process, without other changes: memory that accumulated in the old process is free again, "
        "and the attempt got further than any before it."
    )


@remedy_step(REPEATED)
def as_it_is(context: RemedyContext) -> Remedy | None:
    """Retry without changes, because the failure may have been random. Training resumes from the last good state, or starts
    over if nothing was saved. This is used once for each finding, if the attempt got further than all earlier ones.
    """
    if not context.progressed or context.was_retried_unchanged():
        return None
    return Remedy("Retrying without changes: the failure may have been random and may not happen again.")
