"""Takes snapshots: decides when one is due, copies the state, and writes the copy while the training continues."""

import os
import threading
import time

from .. import protocol
from ..gc_pause import NoCollection
from .capture import Capture
from .cost_model import CostModel
from .encoding import UnsupportedValue
from .interval import (
    BUDGET,
    DEFAULT_ATTEMPT_SECONDS,
    MAX_LOST_SECONDS,
    compute_loan,
    expected_attempt_seconds,
    seconds_between,
    seconds_until_affordable,
)

REQUEST_POLL_SECONDS = 0.05
BATCHES_AHEAD = 16
"""How many batches in advance the ranks agree on the next snapshot: with gradient accumulation they may be some batches
apart.
"""
COMMIT_SECONDS = 60.0
"""How long rank 0 waits for the parts of the other ranks."""
POLL_SECONDS = 0.02
MIN_INTERVAL_FRACTION = 0.5
"""The fraction of the usual interval after which an extra snapshot may be taken at a good point."""
RETRY_SECONDS = 30.0
"""How long to wait after a failed snapshot (a full disk, too little memory)."""


def make_snapshotter(torch, store, emit, max_lost_seconds=None, budget=BUDGET):
    """Return a Snapshotter configured by the supervisor, if there is one. `max_lost_seconds` is the limit set by the
    program itself.
    """
    if max_lost_seconds is None:
        max_lost_seconds = _parse_float(os.environ.get(protocol.MAX_LOST_WORK), None)
    attempt_seconds = _parse_float(os.environ.get(protocol.MTBF), None)
    return Snapshotter(
        torch, store, emit, max_lost_seconds, budget, attempt_seconds, os.environ.get(protocol.SNAPSHOT_NOW)
    )


class Snapshotter(object):
    def __init__(
        self, torch, store, emit, max_lost_seconds=None, budget=BUDGET, attempt_seconds=None, request_file=None
    ):
        """`emit(event, **fields)` writes to the run's journal. `attempt_seconds` is how long earlier attempts lasted;
        None for the first attempt. When the file `request_file` is new, a snapshot is taken now.
        """
        self._store = store
        self._capture = Capture(torch)
        self._emit = emit
        self._max_lost_seconds = max_lost_seconds
        self._budget = budget
        self._attempt_seconds = attempt_seconds
        self._started_at = time.monotonic()
        self._costs = CostModel()
        self._write_seconds = 0.0
        self._allocation_thread = None
        self._write_thread = None
        self._copy_done = None
        """Set once the newest snapshot is copied, if it is copied while the training continues."""
        self._reported = set()
        self._request_file = request_file
        self._seen_request = _read_request_time(request_file)
        self._next_poll = 0.0
        self._taken_at = time.monotonic()
        self._agreed_position = -1  # where several ranks take the next snapshot
        self._next_due = self._compute_next_due(self._started_at)

    def preallocate(self, size):
        """Allocate memory in the background for copies of a state of about `size` bytes: this can take far longer than
        a copy.
        """
        if not self._costs.has_snapshots:
            self._allocation_thread = _start_thread(self._capture.preallocate, size)

    def is_due(self, position):
        """Return whether to take a snapshot now. Called between any two batches, and costs next to nothing."""
        if self._store.world_size == 1:
            return self._is_wanted()
        if self._store.rank != 0:
            self._agreed_position = self._store.read_announced()
        elif self._agreed_position < position and self._is_wanted():
            self._announce(position + BATCHES_AHEAD)
        return self._agreed_position == position != self._store.last_position

    def _announce(self, position):
        try:
            self._store.announce(position)
            self._agreed_position = position
        except OSError as error:
            self._report_failure(position, _describe_error(error))

    def _is_wanted(self):
        now = time.monotonic()
        if self._write_thread is not None and self._write_thread.is_alive():
            return False  # at most one copy in memory
        if now >= self._next_due:
            return True
        if self._request_file is not None and now >= self._next_poll:
            self._next_poll = now + REQUEST_POLL_SECONDS
            return _read_request_time(self._request_file) != self._seen_request
        return False

    def may_wait(self):
        """Return whether a snapshot that is due may be delayed because the work at risk is still below the limit."""
        max_lost = MAX_LOST_SECONDS if self._max_lost_seconds is None else self._max_lost_seconds
        is_requested = self._request_file is not None and _read_request_time(self._request_file) != self._seen_request
        return not is_requested and self._store.world_size == 1 and time.monotonic() - self._taken_at < max_lost

    def is_affordable(self):
        """Return whether an extra snapshot fits the budget and is worthwhile, at a point where repeating the work would
        be expensive.
        """
        now = time.monotonic()
        idle = self._write_thread is None or not self._write_thread.is_alive()
        return (
            idle
            and now >= self._compute_affordable_at(now)
            and now - self._taken_at >= MIN_INTERVAL_FRACTION * self._compute_interval(now)
        )

    def take(self, position, step, collect, header_fields, in_background=False):
        """Take a snapshot of the state that `collect()` returns; `header_fields` goes into the header. Return True if
        it is being written. With `in_background`, tensors are copied while the training continues. The training must
        not change them before `wait_until_copied` returns.
        """
        if self._store.world_size > 1 and position == self._store.last_position:
            return False  # half of a second snapshot could be combined with half of the first
        began = time.monotonic()
        request_time = _read_request_time(self._request_file)
        if self._allocation_thread is not None:
            self._allocation_thread.join()
            self._allocation_thread = None
        try:
            with NoCollection():
                self._capture.begin(collect())
                in_background = in_background and not self._capture.has_device_tensors
                if not in_background:
                    self._capture.copy()
            header = self._capture.header(dict(header_fields, position=position, step=step))
        except Exception as error:
            self._report_failure(step, _describe_error(error))
            return False
        self._store.last_position = position
        self._seen_request = request_time
        self._costs.start_snapshot()
        self._costs.add(time.monotonic() - began)
        self._taken_at = began
        self._next_due = self._compute_next_due(began)
        copy_done = threading.Event() if in_background else None
        write_thread = _start_thread(self._write, position, step, header, request_time, copy_done)
        if write_thread is None:
            self._report_failure(step, "the system could not start a thread to write the snapshot")
            return False
        self._write_thread, self._copy_done = write_thread, copy_done
        return True

    def wait_until_copied(self):
        """Wait until the newest snapshot is copied. After that, the training may change its tensors."""
        if self._copy_done is not None:
            began = time.monotonic()
            self._copy_done.wait()
            self._copy_done = None
            self._costs.add(time.monotonic() - began)

    def flush(self, timeout=None):
        """Wait for the snapshot that is being written."""
        if self._write_thread is not None:
            self._write_thread.join(timeout)

    def _compute_interval(self, now):
        attempt_seconds = expected_attempt_seconds(
            DEFAULT_ATTEMPT_SECONDS if self._attempt_seconds is None else self._attempt_seconds, now - self._started_at
        )
        return seconds_between(self._costs.typical, attempt_seconds, self._max_lost_seconds, self._write_seconds)

    def _compute_next_due(self, now):
        due = now + self._compute_interval(now)
        return due if self._max_lost_seconds is not None else max(due, self._compute_affordable_at(now))

    def _compute_affordable_at(self, now):
        cost = self._costs.typical
        loan = compute_loan(cost, self._attempt_seconds)
        return now + seconds_until_affordable(
            cost, self._costs.counted_seconds, now - self._started_at, self._budget, loan
        )

    def _write(self, position, step, header, request_time, copy_done):
        """Copy, write and hash the snapshot in a thread while the training runs."""
        if copy_done is not None and not self._copy_in_background(step, copy_done):
            return
        began = time.monotonic()
        try:
            path = self._store.write(position, header, self._capture.raw())
            committed = self._store.world_size == 1 or self._store.rank != 0 or self._commit()
        except Exception as error:
            self._report_failure(step, _describe_error(error))
            return
        if not committed:
            self._report_failure(step, "not all ranks wrote their part of the snapshot")
            return
        self._reported.clear()
        took = time.monotonic() - began
        self._write_seconds = took
        self._emit(
            "snapshot",
            step=step,
            position=position,
            path=path,
            bytes=self._capture.bytes,
            stall=round(self._costs.last, 6),
            seconds=round(took, 6),
            asked=bool(request_time),
        )

    def _copy_in_background(self, step, copy_done):
        try:
            self._capture.copy()
            return True
        except Exception as error:
            self._report_failure(step, _describe_error(error))
            return False
        finally:
            copy_done.set()

    def _commit(self):
        deadline = time.monotonic() + COMMIT_SECONDS
        while not self._store.commit():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _report_failure(self, step, why):
        """Report why a snapshot failed. The training continues with the last good snapshot."""
        now = time.monotonic()
        self._next_due = max(now + RETRY_SECONDS, self._compute_next_due(now))
        if why not in self._reported:
            self._reported.add(why)
            self._emit("snapshot-failed", step=step, why=why)


def _start_thread(target, *args):
    """Start and return a thread; None if the system cannot start one."""
    thread = threading.Thread(target=target, args=args, name="holdfast snapshot", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _describe_error(error):
    """Return the reason why a snapshot failed. The error may come from the training's own `state_dict`."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    known = isinstance(error, (UnsupportedValue, MemoryError, RuntimeError, ValueError)) and str(error)
    return known or "%s: %s" % (type(error).__name__, error)


def _read_request_time(path):
    """Return the modification time, which changes with every request; None if the file does not exist."""
    if path is None:
        return None
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _parse_float(text, default):
    try:
        return float(text)
    except (TypeError, ValueError):
        return default
