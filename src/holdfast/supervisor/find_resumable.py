"""Which run `holdfast resume` resumes if none is given."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from holdfast.diagnosis.run_state import load_run_state
from holdfast.diagnosis.stages import load_staged_run
from holdfast.schema.errors import JournalUnreadable, UnknownRun
from holdfast.schema.verdicts import Outcome
from holdfast.storage.folder import RUNS, runs_newest_first
from holdfast.storage.journal import replay
from holdfast.storage.lock import is_live
from holdfast.storage.summary_file import recorded_verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.storage.folder import RunFolder

RESUMABLE = (Outcome.INTERRUPTED, Outcome.FAILED)


def newest_resumable(root: Path, notify: Callable[[str], None] = lambda _: None) -> RunFolder:
    """Return the newest run that was interrupted, failed or lost its supervisor. Any other run must be specified.

    Runs of other users are skipped, and `notify` gets a line about it.
    """
    found = next((run for run in runs_newest_first(root, notify) if is_resumable(run)), None)
    if found is None:
        raise UnknownRun(
            f"There is no run under {root / RUNS} that was interrupted or failed, or whose Holdfast process was killed.",
            next_step="specify the run: holdfast resume RUN; or start a new one: holdfast run -- python train.py",
            look_at=str(root / RUNS),
        )
    return found


def is_resumable(run: RunFolder) -> bool:
    """Read the verdict from the summary if it matches this journal, else from the journal."""
    if is_live(run) or not os.path.isfile(run.journal):  # noqa: PTH113 - no error without permission to read it
        return False
    recorded = recorded_verdict(run)
    if recorded is not None:
        return recorded in RESUMABLE
    try:
        entries = replay(run)
        first = next(entries, None)
        if first is None:
            return False
        entries = itertools.chain([first], entries)
        ended = load_staged_run(entries).ended if run.stages.is_dir() else load_run_state(entries).ended
    except JournalUnreadable:
        return False
    return ended is None or ended.verdict in RESUMABLE
