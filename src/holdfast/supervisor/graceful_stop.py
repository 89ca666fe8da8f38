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
RESTART_AGAIN_S = 600.0
"""Until the next try."""


@dataclass(frozen=True)
class PendingStop:
    """It is to end as soon as a snapshot is on disk."""

    by: str
    at_the_latest: float
    snapshots_before: int
    planned: str = ""
    """Why it is to go on in a fresh process; where that is so, it does not end without a snapshot."""


@dataclass(frozen=True)
class Ended:
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
        self._departure: PendingStop | None = None
        self._next_restart = now

    @property
    def idle(self) -> bool:
        return self._departure is None

    def is_for(self, by: str) -> bool:
        return self._departure is not None and self._departure.by == by

    @property
    def only_planned(self) -> bool:
        """Nobody outside asked for the end: a signal may still take its place."""
        return self._departure is None or bool(self._departure.planned)

    def may_restart(self, now: float) -> bool:
        return self._departure is None and now >= self._next_restart

    def takes_snapshots(self) -> bool:
        coverage = self._state().attempt.coverage
        return coverage is not None and coverage.kinds.get("snapshots", "").startswith("seen")

    def ask_for_snapshot(self) -> bool:
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

    def leave(self, by: str, now: float, within_s: float, planned: str = "") -> bool:
        """Ask for a snapshot and end it once that is on disk; False where it takes none."""
        taken = self._state().attempt.snapshots.count
        if not self.ask_for_snapshot():
            return False
        self._departure = PendingStop(by, now + within_s, taken, planned)
        return True

    def look(self, now: float) -> Ended | GivenUp | None:
        """What became of the wait, once that is known."""
        departure = self._departure
        if departure is None:
            return None
        if self._state().attempt.snapshots.count > departure.snapshots_before:
            return Ended(departure.by, departure.planned)
        if now < departure.at_the_latest:
            return None
        if not departure.planned:
            return Ended(departure.by, "")
        self._departure = None
        self._next_restart = now + RESTART_AGAIN_S
        return GivenUp(departure.planned)
