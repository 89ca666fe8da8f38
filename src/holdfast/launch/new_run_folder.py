"""Creates the folder of a new run. If it already contains a run, the error states what can be done with that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.run_state import load_run_state
from holdfast.remedies.policy import is_over
from holdfast.schema.errors import JournalUnreadable, RunExists
from holdfast.schema.shell_text import shell_quote
from holdfast.storage import folder as folders
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay
from holdfast.storage.lock import is_live
from holdfast.supervisor.find_resumable import is_resumable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def create_run_folder(command: Sequence[str], *, root: Path, name: str | None, folder: Path | None) -> RunFolder:
    try:
        return folders.create(command, root=root, name=name, folder=folder)
    except RunExists as error:
        existing = RunFolder(folder) if folder is not None else None
        if existing is None or not existing.journal.is_file():
            raise
        if is_live(existing):
            raise RunExists(
                f"{folder} contains a run that is in progress.",
                next_step=f"see its state: holdfast status {shell_quote(folder)}; or choose another --dir",
            ) from error
        if not _has_finished(existing):
            raise
        raise RunExists(
            f"{folder} already contains a run, which has finished.",
            next_step=f"choose another --dir; to see the result of that run: holdfast report {shell_quote(folder)}",
        ) from error


def _has_finished(run: RunFolder) -> bool:
    """Return True if `holdfast resume` would refuse the run as finished."""
    try:
        return not is_resumable(run) and (run.stages.is_dir() or is_over(load_run_state(replay(run))))
    except JournalUnreadable:
        return False
