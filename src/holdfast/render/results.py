"""What a run leaves for its user: the best weights, and the folder of the framework's own results, as the record knows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.checkpoints import checkpoints

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

BEST = re.compile(r"(?:.*[\\/])?best\.(?:pt|pth|ckpt)")


def best_of(state: RunState) -> str | None:
    """The newest file that was saved as the best, where nothing speaks against using it."""
    named = [checkpoint for checkpoint in checkpoints(state) if BEST.fullmatch(checkpoint.path)]
    return named[-1].path if named and named[-1].usable else None


def folder_of(attempt: AttemptState) -> str | None:
    folder = attempt.settings.get("save_dir")
    return str(folder) if folder else None


def results_of(state: RunState) -> str | None:
    """The folder that the newest attempt wrote into; where that is another one than before, it is said."""
    folder = next((found for attempt in reversed(state.attempts) if (found := folder_of(attempt))), None)
    if folder is None:
        return None
    other = another_folder(state)
    return folder if other is None else f"{folder} ({other})"


def another_folder(state: RunState) -> str | None:
    """A trainer that is started over by its own command may take a fresh folder, and nobody looks for two."""
    known = [(attempt, found) for attempt in state.attempts if (found := folder_of(attempt))]
    if len(known) < 2 or known[-1][1] == known[-2][1]:
        return None
    (before, earlier), (now, _) = known[-2:]
    why = " and started over" if now.starts_over else ""
    return f"attempt {now.number} took another folder{why}; what attempt {before.number} wrote is in {earlier}"
