"""The checkpoint that Ultralytics itself resumes from: last.pt, or the newest intact backup of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.schema.events import Resume
from holdfast.storage.integrity import is_intact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.run_state import RunState

NO_LAST_PT = "it crashed before its first snapshot and before Ultralytics saved a last.pt"


def find_resume_point(state: RunState, before: int | None) -> Resume:
    candidates = [found for found in _find_candidates(state) if before is None or found[1] < before]
    for path, step in candidates:
        if is_intact(path):
            why = "" if path == candidates[0][0] else f"{candidates[0][0]} is missing, incomplete or corrupt"
            return Resume(how="framework", checkpoint=str(path), step=step, why=why)
    why = "last.pt is incomplete or corrupt" if candidates else NO_LAST_PT
    return Resume(how="start over", why=why)


def _find_candidates(state: RunState) -> Iterator[tuple[Path, int]]:
    for attempt in reversed(state.attempts):
        for path, saved in reversed(attempt.saves.by_path.items()):
            if Path(path).name == "last.pt":
                yield Path(path), saved.step
    for attempt in reversed(state.attempts):
        for kept in attempt.backed_up.files if attempt.backed_up is not None else []:
            if Path(kept.path).name == "last.pt":
                yield Path(kept.kept), kept.step
