"""Stops a training whose supervisor is gone.

The supervisor keeps an exclusive lock on a file while it runs. The kernel releases the lock however the supervisor
exits. Trying to get a shared lock takes one or two microseconds in a hot loop and twenty-five in a real training, so
several short steps share one check. A process whose parent is still the supervisor need not try at all.
"""

import errno
import fcntl
import os
import signal
import threading
import time

from . import protocol
from .heartbeat import file_identity

ENDED = b"ended"
"""Written to the lock file after the supervisor's pid when the supervisor exits normally. A process that the training
left behind then continues, as it would without Holdfast."""
CONTENT_BYTES = 256
KILL_SECONDS = 10.0
CHECK_INTERVAL = 0.02
SLOW_CHECK_INTERVAL = 1.0
SLOW_CHECK_SECONDS = 2e-5
"""A check that takes longer than this (a network file system) is slow."""


CANNOT_CHECK = "the probe cannot check whether the supervisor is alive"


class SupervisorWatch(object):
    def __init__(self, probe):
        self.probe = probe
        self._path = None
        self._descriptor = -1
        self._identity = None
        self._interval = CHECK_INTERVAL
        self._parent = None
        """The supervisor's pid, if the supervisor is the parent of this process."""
        self.next_at = 0.0

    def watch(self, path):
        if not path or os.environ.get(protocol.OBSERVE_ONLY) == "1":
            return
        try:
            self._path = path
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            self._identity = file_identity(self._descriptor)
            owner = os.pread(self._descriptor, CONTENT_BYTES, 0).split()[:1]
            self._parent = os.getppid() if owner == [b"%d" % os.getppid()] else None
            if min(self._measure_check() for _ in range(5)) > SLOW_CHECK_SECONDS:
                self._interval = SLOW_CHECK_INTERVAL
        except OSError as error:
            self.probe.note(CANNOT_CHECK, str(error))

    def _measure_check(self):
        began = time.monotonic()
        self._can_lock(self._descriptor)
        return time.monotonic() - began

    def close(self):
        """Close the descriptor. After a fork this is needed because a descriptor shares its locks with its copies."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def check(self, now):
        """Stop the training if the supervisor is gone. Called at a step, once `next_at` is reached."""
        if self._descriptor < 0:
            self.next_at = float("inf")
            return
        self.next_at = now + self._interval
        if self._parent is not None and os.getppid() == self._parent:
            return
        if self._can_lock(self._descriptor) and self._confirm_gone():
            content = os.pread(self._descriptor, CONTENT_BYTES, 0)
            self.close()
            if ENDED not in content.split():
                self._stop()

    def _can_lock(self, descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EINTR):
                self._descriptor = -1
                self.probe.note(CANNOT_CHECK, str(error))
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return True

    def _confirm_gone(self):
        """Check again with the right file: the program may have closed the descriptor and reused its number."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if file_identity(descriptor) == self._identity:
                self._descriptor = descriptor
                return True
        except OSError:
            pass
        self.watch(self._path)
        return self._descriptor >= 0 and self._can_lock(self._descriptor)

    def _stop(self):
        self.probe.end("supervisor gone")
        group = os.getpgrp()
        killer = threading.Timer(KILL_SECONDS, os.killpg, (group, signal.SIGKILL))
        killer.daemon = True
        killer.start()
        os.killpg(group, signal.SIGTERM)
