"""Takes snapshots: decides when one is due, copies the state, and writes the copy while the training continues."""

import os
import threading
import time

from .. import protocol
from ..gc_pause import NoCollection
from .capture import Capture
from .cost_model import CostModel
from .encoding import NotPlain
from .interval import (
    BUDGET,
    LIFE_SECONDS,
    MAX_LOST_SECONDS,
    expected_attempt_seconds,
    loan_for,
    seconds_between,
    seconds_until_earned,
)

ASKED_EVERY_SECONDS = 0.05
AHEAD = 16
"""How many batches in advance the ranks agree on the next snapshot: with gradient accumulation they may be some batches apart."""
COMMIT_SECONDS = 60.0
"""How long rank 0 waits for the parts of the other ranks."""
POLL_SECONDS = 0.02
WORTH_IT = 0.5
"""The fraction of the usual interval after which an extra snapshot may be taken at a good point."""
AGAIN_SECONDS = 30.0
"""How long to wait after a failed snapshot (a full disk, too little memory)."""


def snapshots_of_this_run(torch, store, tell, most_lost=None, budget=BUDGET):
    """Return a Snapshotter configured by the supervisor, if there is one. `most_lost` is the limit set by the program itself."""
    if most_lost is None:
        most_lost = _as_float(os.environ.get(protocol.MAX_LOST_WORK), None)
    life = _as_float(os.environ.get(protocol.MTBF), None)
    return Snapshotter(torch, store, tell, most_lost, budget, life, os.environ.get(protocol.SNAPSHOT_NOW))


class Snapshotter(object):
    def __init__(self, torch, store, tell, most_lost=None, budget=BUDGET, life=None, asked_for=None):
        """`tell(event, **fields)` writes to the run's journal. `life` is how long earlier attempts lasted; None for the first attempt.
        When the file `asked_for` is new, a snapshot is taken now.
        """
        self._store = store
        self._capture = Capture(torch)
        self._tell = tell
        self._most_lost = most_lost
        self._budget = budget
        self._life = life
        self._born = time.monotonic()
        self._costs = CostModel()
        self._write_seconds = 0.0
        self._making_room = None
        self._writing = None
        self._copying = None
        """Set once the newest snapshot is copied, if it is copied while the training continues."""
        self._said = set()
        self._asked_for = asked_for
        self._asked_seen = _mark(asked_for)
        self._look_at = 0.0
        self._taken_at = time.monotonic()
        self._at = -1  # where several ranks take the next snapshot
        self._next_at = self._next_after(self._born)

    def make_room(self, size):
        """Allocate memory in the background for copies of a state of about `size` bytes: this can take far longer than a copy."""
        if not self._costs.any:
            self._making_room = _started(self._capture.make_room, size)

    def due(self, position):
        """Return whether to take a snapshot now. Called between any two batches, and costs next to nothing."""
        if self._store.world_size == 1:
            return self._wanted()
        if self._store.rank != 0:
            self._at = self._store.agreed()
        elif self._at < position and self._wanted():
            self._agree(position + AHEAD)
        return self._at == position != self._store.at

    def _agree(self, position):
        try:
            self._store.agree(position)
            self._at = position
        except OSError as error:
            self._failed(position, _said(error))

    def _wanted(self):
        now = time.monotonic()
        if self._writing is not None and self._writing.is_alive():
            return False  # at most one copy in memory
        if now >= self._next_at:
            return True
        if self._asked_for is not None and now >= self._look_at:
            self._look_at = now + ASKED_EVERY_SECONDS
            return _mark(self._asked_for) != self._asked_seen
        return False

    def may_wait(self):
        """Return whether a snapshot that is due may be delayed because the work at risk is still below the limit."""
        lost = MAX_LOST_SECONDS if self._most_lost is None else self._most_lost
        asked = self._asked_for is not None and _mark(self._asked_for) != self._asked_seen
        return not asked and self._store.world_size == 1 and time.monotonic() - self._taken_at < lost

    def affordable(self):
        """Return whether an extra snapshot fits the budget and is worthwhile, at a point where repeating the work would be expensive."""
        now = time.monotonic()
        idle = self._writing is None or not self._writing.is_alive()
        return idle and now >= self._earned_at(now) and now - self._taken_at >= WORTH_IT * self._between(now)

    def take(self, position, step, collect, more, beside=False):
        """Take a snapshot of the state that `collect()` returns; `more` goes into the header. Return True if it is being written.
        With `beside`, tensors are copied while the training continues. The training must not change them before `wait_until_copied` returns.
        """
        if self._store.world_size > 1 and position == self._store.at:
            return False  # half of a second snapshot could be combined with half of the first
        began = time.monotonic()
        asked = _mark(self._asked_for)
        if self._making_room is not None:
            self._making_room.join()
            self._making_room = None
        try:
            with NoCollection():
                self._capture.begin(collect())
                beside = beside and not self._capture.waits_for_a_device
                if not beside:
                    self._capture.copy()
            header = self._capture.header(dict(more, position=position, step=step))
        except Exception as error:
            self._failed(step, _said(error))
            return False
        self._store.at = position
        self._asked_seen = asked
        self._costs.another()
        self._costs.add(time.monotonic() - began)
        self._taken_at = began
        self._next_at = self._next_after(began)
        copying = threading.Event() if beside else None
        writing = _started(self._write, position, step, header, asked, copying)
        if writing is None:
            self._failed(step, "the system could not start a thread to write the snapshot")
            return False
        self._writing, self._copying = writing, copying
        return True

    def copied(self):
        """Wait until the newest snapshot is copied. After that, the training may change its tensors."""
        if self._copying is not None:
            began = time.monotonic()
            self._copying.wait()
            self._copying = None
            self._costs.add(time.monotonic() - began)

    def settle(self, timeout=None):
        """Wait for the snapshot that is being written."""
        if self._writing is not None:
            self._writing.join(timeout)

    def _between(self, now):
        life = expected_attempt_seconds(LIFE_SECONDS if self._life is None else self._life, now - self._born)
        return seconds_between(self._costs.usual, life, self._most_lost, self._write_seconds)

    def _next_after(self, now):
        due = now + self._between(now)
        return due if self._most_lost is not None else max(due, self._earned_at(now))

    def _earned_at(self, now):
        cost = self._costs.usual
        loan = loan_for(cost, self._life)
        return now + seconds_until_earned(cost, self._costs.counted, now - self._born, self._budget, loan)

    def _write(self, position, step, header, asked, copying):
        """Copy, write and hash the snapshot in a thread while the training runs."""
        if copying is not None and not self._copy_beside(step, copying):
            return
        began = time.monotonic()
        try:
            path = self._store.write(position, header, self._capture.raw())
            committed = self._store.world_size == 1 or self._store.rank != 0 or self._commit()
        except Exception as error:
            self._failed(step, _said(error))
            return
        if not committed:
            self._failed(step, "not all ranks wrote their part of the snapshot")
            return
        self._said.clear()
        took = time.monotonic() - began
        self._write_seconds = took
        self._tell(
            "snapshot",
            step=step,
            position=position,
            path=path,
            bytes=self._capture.bytes,
            stall=round(self._costs.newest, 6),
            seconds=round(took, 6),
            asked=bool(asked),
        )

    def _copy_beside(self, step, copying):
        try:
            self._capture.copy()
            return True
        except Exception as error:
            self._failed(step, _said(error))
            return False
        finally:
            copying.set()

    def _commit(self):
        deadline = time.monotonic() + COMMIT_SECONDS
        while not self._store.commit():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _failed(self, step, why):
        """Report why a snapshot failed. The training continues with the last good snapshot."""
        now = time.monotonic()
        self._next_at = max(now + AGAIN_SECONDS, self._next_after(now))
        if why not in self._said:
            self._said.add(why)
            self._tell("snapshot-failed", step=step, why=why)


def _started(target, *args):
    """Start and return a thread; None if the system cannot start one."""
    thread = threading.Thread(target=target, args=args, name="holdfast snapshot", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _said(error):
    """Return the reason why a snapshot failed. The error may come from the training's own `state_dict`."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    known = isinstance(error, (NotPlain, MemoryError, RuntimeError, ValueError)) and str(error)
    return known or "%s: %s" % (type(error).__name__, error)


def _mark(path):
    """Return the modification time, which changes with every request; None if the file does not exist."""
    if path is None:
        return None
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _as_float(text, default):
    try:
        return float(text)
    except (TypeError, ValueError):
        return default
