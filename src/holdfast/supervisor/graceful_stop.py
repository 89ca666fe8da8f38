"""An attempt that is to end with a snapshot: it is asked for, waited for, and only then does the attempt end.

A snapshot asked for by touching a file is the child's to take; whether it came is read from the run state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.storage.safe_files import touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.diagnosis.run_state import RunState
    from holdfast.storage.folder import RunFolder

LAST_SNAPSHOT_S = 10.0
"""How long an ending may wait for a last snapshot: schedulers send SIGTERM half a minute before SIGKILL."""
RESTART_SNAPSHOT_S = 60.0
"""How long a planned restart waits for its snapshot; where none comes the training is left alone."""
RESTART_RETRY_S = 600.0
"""Until the next try."""


@dataclass(frozen=True)
class PendingStop:
    """It is to end as soon as a snapshot is on disk."""

    by: str
    deadline: float
    snapshots_before: int
    planned: str = ""
    """Why it is to go on in a fresh process; where that is so, it does not end without a snapshot."""


@dataclass(frozen=True)
class StopNow:
    """The wait is over, and the attempt with it."""

    by: str
    planned: str


@dataclass(frozen=True)
class GivenUp:
    """No snapshot came; the training goes on as it is."""

    planned: str


class GracefulStop:
    def __init__(self, run: RunFolder, state: Callable[[], RunState], now: float) -> None:
        self._run = run
        self._state = state
        self._pending: PendingStop | None = None
        self._next_restart = now

    @property
    def is_idle(self) -> bool:
        return self._pending is None

    def is_stopping_for(self, by: str) -> bool:
        return self._pending is not None and self._pending.by == by

    @property
    def is_only_planned(self) -> bool:
        """Nobody outside asked for the end: a signal may still take its place."""
        return self._pending is None or bool(self._pending.planned)

    def may_restart(self, now: float) -> bool:
        return self._pending is None and now >= self._next_restart

    def takes_snapshots(self) -> bool:
        coverage = self._state().attempt.coverage
        return coverage is not None and coverage.kinds.get("snapshots", "").startswith("seen")

    def request_snapshot(self) -> bool:
        """False where none can come of it."""
        if not self.takes_snapshots():
            return False
        try:
            if not self._run.is_there():
                return False
            touch(self._run.snapshot_now)
        except OSError:
            return False
        return True

    def request_stop(self, by: str, now: float, within_s: float, planned: str = "") -> bool:
        """Ask for a snapshot and end it once that is on disk; False where it takes none."""
        snapshots_before = self._state().attempt.snapshots.count
        if not self.request_snapshot():
            return False
        self._pending = PendingStop(by, now + within_s, snapshots_before, planned)
        return True

    def poll(self, now: float) -> StopNow | GivenUp | None:
        """What became of the wait, once that is known."""
        pending = self._pending
        if pending is None:
            return None
        if self._state().attempt.snapshots.count > pending.snapshots_before:
            return StopNow(pending.by, pending.planned)
        if now < pending.deadline:
            return None
        if not pending.planned:
            return StopNow(pending.by, "")
        self._pending = None
        self._next_restart = now + RESTART_RETRY_S
        return GivenUp(pending.planned)
