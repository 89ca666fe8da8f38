"""The saved checkpoints: which are usable, and why the others are not."""

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
    """Return the checkpoints by path, oldest first, as the last attempt that wrote to each path left it."""
    found: dict[str, Checkpoint] = {}
    for attempt in state.attempts:
        backed_up = attempt.backed_up
        truncated = {file.path for file in backed_up.files if file.torn} if backed_up is not None else set()
        for path, saved in attempt.saves.by_path.items():
            fault = _find_fault(attempt, saved, truncated=path in truncated)
            why = fault or _describe_good(attempt, saved)
            found.pop(path, None)
            found[path] = Checkpoint(path, saved.step, attempt.number, not fault, why)
    return sorted(found.values(), key=lambda checkpoint: (checkpoint.attempt, checkpoint.step))


def last_good(state: RunState) -> Checkpoint | None:
    return next((checkpoint for checkpoint in reversed(checkpoints(state)) if checkpoint.usable), None)


def _find_fault(attempt: AttemptState, saved: Saved, *, truncated: bool) -> str:
    reloaded = attempt.reloaded.get(saved.path or "")
    if truncated:
        return "incomplete: it was being written when the training ended"
    if reloaded is not None and reloaded.loads is False:
        return f"it does not load: {reloaded.why}"
    if saved.nonfinite or (reloaded is not None and reloaded.nonfinite):
        return "it contains values that are not finite"
    corrupt = _find_corruption(attempt, saved.step)
    return f"{corrupt.rule}: {corrupt.message}" if corrupt is not None else ""


def _find_corruption(attempt: AttemptState, step: int) -> Finding | None:
    """Return a fatal finding about learning that already applied when the file was saved."""
    rules = by_id()
    for finding in attempt.findings:
        rule = rules.get(finding.rule)
        if finding.severity == "fatal" and rule is not None and rule.kind in ("learning", "proof"):
            since = finding.corrupt_from if finding.corrupt_from is not None else (attempt.first_step or 0)
            if step >= since:
                return finding
    return None


def _describe_good(attempt: AttemptState, saved: Saved) -> str:
    reloaded = attempt.reloaded.get(saved.path or "")
    text = {
        "equal": "it matches the weights in memory",
        "cast": "it matches the weights in memory, in another precision",
        "average": "it is an average of the weights in memory",
        "earlier": "it matches the weights of an earlier step",
    }.get(saved.matches, "it was not compared with the weights in memory")
    if reloaded is not None and reloaded.loads is None:
        return f"{text}; it was not read back: {reloaded.why}"
    return f"{text}; it loads and all values are finite" if reloaded is not None else text


def is_plain_loop(state: RunState) -> bool:
    """Return True for a loop of the user's own: no known framework, no use of guard, and no configured way to resume."""
    for attempt in state.attempts:
        snapshots = attempt.snapshots
        is_guarded = any(event is not None for event in (snapshots.newest, snapshots.failed, snapshots.restored))
        if attempt.framework is not None or is_guarded or not attempt.starts_over:
            return False
    return any(attempt.attached is not None for attempt in state.attempts)
