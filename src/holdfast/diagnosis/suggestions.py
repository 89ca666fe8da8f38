"""Advice that rules about numbers which blow up share: each only where it can be followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

GROWN = 10.0
"""A loss that was so many times the first one before it was lost has been driven there."""
AT_ONCE = 5
"""Lost within so many steps after a first loss that was finite: nothing but the first updates lies in between."""


def go_back(state: RunState, since: int | None) -> list[str]:
    """To a checkpoint from before a step, where one is known. Where nobody watched, there may be one."""
    if any(attempt.attached is not None for attempt in state.ancestry) and not _kept_before(state, since):
        return []
    return [f"go back to a checkpoint from before {f'step {since}' if since is not None else 'that'}"]


def _kept_before(state: RunState, since: int | None) -> bool:
    kept = [saved.step for attempt in state.ancestry for saved in attempt.saves.by_path.values()]
    kept += [snapshot.step for attempt in state.ancestry for snapshot in attempt.snapshots.known]
    return any(since is None or step < since for step in kept)


def lower_the_rate(attempt: AttemptState, since: int | None) -> list[str]:
    """Where the losses before a step show that it is the learning rate."""
    loss = attempt.loss
    if loss.first is None or loss.first <= 0.0 or not attempt.starts_over:
        return []
    rate = f" (it was {attempt.rates.highest.highest:g})" if attempt.rates.highest.count else ""
    lower = f"lower the learning rate{rate}, by a factor of ten or more"
    if loss.highest > GROWN * loss.first:
        return [f"{lower}: the loss grew from {loss.first:.3g} to {loss.highest:.3g} before it was lost"]
    if since is not None and attempt.first_step is not None and since - attempt.first_step <= AT_ONCE:
        return [f"{lower}, or add warm-up: the first loss was {loss.first:.3g}, and it was lost at once"]
    return []
