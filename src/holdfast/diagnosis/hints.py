"""Advice in findings: in the terms of the framework, and only what the user can follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.frameworks import find_framework

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

DRIVEN_UP = 10.0
"""A loss that reached this many times the first loss before it became NaN or infinite was driven there by the updates."""
AT_ONCE = 5
"""If a finite first loss becomes NaN or infinite within this many steps, only the first updates can be the reason."""


def hint(state: RunState, *advice: str) -> str:
    """Return the framework's settings for this advice, as ` (cache=False)`; empty if there are none."""
    hints = find_framework(state.framework, state.attempt.started.command).hints
    settings = " ".join(hints[key] for key in advice if key in hints)
    return f" ({settings})" if settings else ""


def suggest_earlier_checkpoint(state: RunState, since: int | None) -> list[str]:
    """Suggest a checkpoint from before a step, if one is known. If nothing was observed, assume that there may be one."""
    if any(attempt.attached is not None for attempt in state.ancestry) and not _has_saved_before(state, since):
        return []
    return [f"go back to a checkpoint from before {f'step {since}' if since is not None else 'that'}"]


def _has_saved_before(state: RunState, since: int | None) -> bool:
    steps = [saved.step for attempt in state.ancestry for saved in attempt.saves.by_path.values()]
    steps += [snapshot.step for attempt in state.ancestry for snapshot in attempt.snapshots.known]
    return any(since is None or step < since for step in steps)


def suggest_lower_rate(attempt: AttemptState, since: int | None) -> list[str]:
    """Suggest a lower learning rate, if the losses before a step show that the learning rate is the reason."""
    loss = attempt.loss
    if loss.first is None or loss.first <= 0.0 or not attempt.starts_over:
        return []
    rate = f" (it was {attempt.rates.highest.highest:g})" if attempt.rates.highest.count else ""
    lower = f"lower the learning rate{rate}, by a factor of ten or more"
    if loss.highest > DRIVEN_UP * loss.first:
        return [f"{lower}: the loss grew from {loss.first:.3g} to {loss.highest:.3g} before it stopped being finite"]
    if since is not None and attempt.first_step is not None and since - attempt.first_step <= AT_ONCE:
        return [
            f"{lower}, or add warm-up: the first loss was {loss.first:.3g}, and the loss stopped being finite right after"
        ]
    return []
