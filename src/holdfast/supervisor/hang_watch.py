"""Detection of a training that hangs.

A hang needs all of: no step, no fetch and no output for longer than a bound learned from this run, and the same stacks in two
dumps some time apart. This module is the state machine; the attempt's loop feeds it and carries out its requests.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schema.plan import HangSettings

BUSY_FACTOR = 4.0


class Request(Enum):
    NOTHING = "nothing"
    DUMP = "write the stacks"


class HangWatch:
    def __init__(self, settings: HangSettings, now: float) -> None:
        self._settings = settings
        self._last_activity = now
        self._activity: tuple[float, ...] | None = None
        self._longest_pause = 0.0
        self._has_stepped = False
        self._stacks: str | None = None
        self._next_dump_at: float | None = None
        self._repeat_dumps = 0

    @property
    def bound(self) -> float:
        floor = self._settings.floor_s if self._has_stepped else self._settings.start_floor_s
        return max(floor, self._settings.factor * self._longest_pause)

    def quiet_for(self, now: float) -> float:
        return now - self._last_activity

    def update(self, now: float, *activity: float, stepped: bool) -> Request:
        """Return what to do next. `activity` are numbers that change when something happens: counts of steps and fetches, bytes of output."""
        if activity != self._activity:
            # The time to start does not indicate how long a step may take.
            if self._has_stepped and self._activity is not None:
                self._longest_pause = max(self._longest_pause, self.quiet_for(now))
            self._activity = activity
            self.reset(now)
        self._has_stepped = self._has_stepped or stepped
        if self._next_dump_at is None and self.quiet_for(now) > self.bound:
            self._next_dump_at = now
        if self._next_dump_at is not None and now >= self._next_dump_at:
            self._next_dump_at = float("inf")
            return Request.DUMP
        return Request.NOTHING

    def reset(self, now: float) -> None:
        """Restart the wait: there was activity, or the training was asleep, suspended or waiting for its terminal."""
        self._last_activity = now
        self._stacks = None
        self._next_dump_at = None
        self._repeat_dumps = 0

    def add_dump(self, stacks: str, now: float, *, busy: bool = False) -> bool:
        """Take the requested stacks. Return True if they equal the previous dump: the training hangs.

        `busy` means that the processes used the CPU meanwhile. A long native call also keeps its stack, so the bound is larger then.
        """
        stacks = _normalize(stacks)
        same = self._stacks == stacks
        self._schedule_next_dump(now, sooner=self._stacks is None)
        self._stacks = stacks
        return same and (not busy or self.quiet_for(now) > BUSY_FACTOR * self.bound)

    def dump_failed(self, now: float) -> None:
        """Schedule another dump: no stacks were written, because there is no probe or the process is gone."""
        self._schedule_next_dump(now, sooner=False)

    def _schedule_next_dump(self, now: float, *, sooner: bool) -> None:
        """Schedule the next dump: the second one soon, later ones at growing intervals."""
        self._repeat_dumps += 0 if sooner else 1
        self._next_dump_at = now + self._settings.confirm_s * 2 ** min(self._repeat_dumps, 8)


def _normalize(stacks: str) -> str:
    """Remove what can differ between two dumps of a hanging process: which thread handled the signal."""
    threads = re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", stacks)
    return "\n".join(
        sorted(re.sub(r"^Current thread", "Thread", thread).strip() for thread in threads if thread.strip())
    )
