"""Stopping an attempt after a snapshot: request one, wait for it, then stop the attempt.

A snapshot is requested by touching a file. The training takes it; the run state shows whether it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.storage.safe_files import touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.events import StopCause
    from holdfast.storage.folder import RunFolder

LAST_SNAPSHOT_S = 10.0
"""How long to wait for a last snapshot before stopping: schedulers send SIGTERM half a minute before SIGKILL."""
RESTART_SNAPSHOT_S = 60.0
"""How long a planned restart waits for its snapshot. If none is taken, the training is not restarted."""
RESTART_RETRY_S = 600.0
"""Time until the next try."""


@dataclass(frozen=True)
class PendingStop:
    """The attempt stops as soon as a snapshot is on disk."""

    by: StopCause
    deadline: float
    snapshots_before: int
    planned: str
    """Why the training is to be restarted in a new process. If set, the attempt does not stop without a snapshot."""
    rule: str


@dataclass(frozen=True)
class StopNow:
    """The wait is over: stop the attempt."""

    by: StopCause
    planned: str
    rule: str


@dataclass(frozen=True)
class GivenUp:
    """No snapshot was taken; the training continues."""

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

    def is_stopping_for(self, by: StopCause) -> bool:
        return self._pending is not None and self._pending.by == by

    @property
    def is_only_planned(self) -> bool:
        """No stop was requested from outside: a signal may still replace a planned restart."""
        return self._pending is None or bool(self._pending.planned)

    def may_restart(self, now: float) -> bool:
        return self._pending is None and now >= self._next_restart

    def request_snapshot(self) -> bool:
        """Request a snapshot. Return False if the training takes none or it cannot be requested."""
        if not self._state().attempt.takes_snapshots:
            return False
        try:
            if not self._run.exists_unchanged():
                return False
            touch(self._run.snapshot_now)
        except OSError:
            return False
        return True

    def request_stop(self, by: StopCause, now: float, within_s: float, planned: str = "", rule: str = "") -> bool:
        """Request a snapshot, and stop the attempt once it is on disk. Return False if the training takes none."""
        snapshots_before = self._state().attempt.snapshots.count
        if not self.request_snapshot():
            return False
        self._pending = PendingStop(by, now + within_s, snapshots_before, planned, rule)
        return True

    def poll(self, now: float) -> StopNow | GivenUp | None:
        """Return the result of the wait, or None while it is pending."""
        pending = self._pending
        if pending is None:
            return None
        if self._state().attempt.snapshots.count > pending.snapshots_before:
            return StopNow(pending.by, pending.planned, pending.rule)
        if now < pending.deadline:
            return None
        if not pending.planned:
            return StopNow(pending.by, "", pending.rule)
        self._pending = None
        self._next_restart = now + RESTART_RETRY_S
        return GivenUp(pending.planned)
