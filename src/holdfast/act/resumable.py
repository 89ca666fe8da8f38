"""Which run `holdfast resume` goes on with where none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.judge.course import course_of
from holdfast.judge.picture import picture_of
from holdfast.record.folder import RUNS, runs_newest_first
from holdfast.record.journal import replay
from holdfast.record.lock import is_live
from holdfast.words.errors import JournalUnreadable, UnknownRun
from holdfast.words.verdicts import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.record.folder import RunFolder


def newest_resumable(root: Path) -> RunFolder:
    """The newest run that was interrupted, has failed or lost its supervisor. One that was judged otherwise has to be named."""
    found = next((run for run in runs_newest_first(root) if is_resumable(run)), None)
    if found is None:
        raise UnknownRun(
            f"No run under {root / RUNS} was interrupted, has failed or lost its supervisor.",
            next_step="name the run: holdfast resume RUN; or start one: holdfast run -- python train.py",
            look_at=str(root / RUNS),
        )
    return found


def is_resumable(run: RunFolder) -> bool:
    if is_live(run) or not run.journal.exists():
        return False
    try:
        entries = list(replay(run))
    except JournalUnreadable:
        return False
    ended = course_of(entries).ended if run.stages.is_dir() else picture_of(entries).ended
    return bool(entries) and (ended is None or ended.verdict in (Outcome.INTERRUPTED, Outcome.FAILED))
