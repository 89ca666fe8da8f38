"""The folder of a new run; where it holds a run already, what can be done with that one is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.run_state import load_run_state
from holdfast.remedies.policy import is_over
from holdfast.schema.errors import JournalUnreadable, RunExists
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage import folder as folders
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay
from holdfast.storage.lock import is_live
from holdfast.supervisor.find_resumable import is_resumable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def claim(command: Sequence[str], *, root: Path, name: str | None, folder: Path | None) -> RunFolder:
    try:
        return folders.create(command, root=root, name=name, folder=folder)
    except RunExists as error:
        held = RunFolder(folder) if folder is not None else None
        if held is None or not held.journal.is_file():
            raise
        if is_live(held):
            raise RunExists(
                f"{folder} holds a run that is under way.",
                next_step=f"see how it stands: holdfast status {shell_quoted(folder)}; or choose another --dir",
            ) from error
        if not _has_finished(held):
            raise
        raise RunExists(
            f"{folder} already holds a run, and it has finished.",
            next_step=f"choose another --dir; to see what that one came to: holdfast report {shell_quoted(folder)}",
        ) from error


def _has_finished(run: RunFolder) -> bool:
    """As `holdfast resume` would say of it."""
    try:
        return not is_resumable(run) and (run.stages.is_dir() or is_over(load_run_state(replay(run))))
    except JournalUnreadable:
        return False
