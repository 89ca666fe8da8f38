"""Which of the saved checkpoints can be used, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.events import Saved
    from holdfast.schema.verdicts import Finding


@dataclass(frozen=True)
class Checkpoint:
    path: str
    step: int
    attempt: int
    usable: bool
    why: str


def checkpoints(state: RunState) -> list[Checkpoint]:
    """The newest state of each path, oldest first, as the latest attempt that wrote it left it."""
    found: dict[str, Checkpoint] = {}
    for attempt in state.attempts:
        torn = {file.path for file in attempt.backed_up.files if file.torn} if attempt.backed_up is not None else set()
        for path, saved in attempt.saves.by_path.items():
            why_not = _why_not(attempt, saved, torn=path in torn)
            found.pop(path, None)
            found[path] = Checkpoint(path, saved.step, attempt.number, not why_not, why_not or _why(attempt, saved))
    return sorted(found.values(), key=lambda checkpoint: (checkpoint.attempt, checkpoint.step))


def last_good(state: RunState) -> Checkpoint | None:
    return next((checkpoint for checkpoint in reversed(checkpoints(state)) if checkpoint.usable), None)


def _why_not(attempt: AttemptState, saved: Saved, *, torn: bool) -> str:
    reloaded = attempt.reloaded.get(saved.path or "")
    if torn:
        return "torn: it was being written when the training ended"
    if reloaded is not None and reloaded.loads is False:
        return f"it does not load: {reloaded.why}"
    if saved.nonfinite or (reloaded is not None and reloaded.nonfinite):
        return "it holds values that are not finite"
    corrupt = _spoiled(attempt, saved.step)
    return f"{corrupt.rule}: {corrupt.message}" if corrupt is not None else ""


def _spoiled(attempt: AttemptState, step: int) -> Finding | None:
    """A fatal finding about learning that was already true when the file was saved."""
    rules = by_id()
    for finding in attempt.findings:
        rule = rules.get(finding.rule)
        if finding.severity == "fatal" and rule is not None and rule.kind in ("learning", "proof"):
            since = finding.corrupt_from if finding.corrupt_from is not None else (attempt.first_step or 0)
            if step >= since:
                return finding
    return None


def _why(attempt: AttemptState, saved: Saved) -> str:
    reloaded = attempt.reloaded.get(saved.path or "")
    said = {
        "equal": "it is what was live",
        "cast": "it is what was live, in another precision",
        "average": "it is an average of what was live",
        "earlier": "it is what was live at an earlier step",
    }.get(saved.matches, "it was not compared with the live weights")
    if reloaded is not None and reloaded.loads is None:
        return f"{said}; it was not read back: {reloaded.why}"
    return f"{said}; it loads and is finite" if reloaded is not None else said
