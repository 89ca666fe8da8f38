"""Stops a training whose supervisor is gone.

The supervisor holds an exclusive lock on a file for as long as it lives; the kernel lets go of it whatever happens to the
supervisor. Trying for a shared lock costs one or two microseconds in a hot loop and twenty-five in a real one, so that short
steps share a check; and a process whose parent still is the supervisor need not try at all.
"""

import errno
import fcntl
import os
import signal
import threading
import time

from . import protocol

ENDED = b"ended"
"""In the lock file, after the supervisor's pid: it came to its own end. A process that the training left behind goes on, as
it would without us."""
CONTENT_BYTES = 256
KILL_SECONDS = 10.0
CHECK_SECONDS = 0.02
DEAR_CHECK_SECONDS = 1.0
DEAR_SECONDS = 2e-5
"""A check that costs more than this (a network file system) is dear."""


class SupervisorWatch(object):
    def __init__(self, probe):
        self.probe = probe
        self._path = None
        self._descriptor = -1
        self._identity = None
        self._interval = CHECK_SECONDS
        self._parent = None
        """The supervisor's pid, where it started this very process."""
        self.next_at = 0.0

    def watch(self, path):
        if not path or os.environ.get(protocol.OBSERVE_ONLY) == "1":
            return
        try:
            self._path = path
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
            self._identity = (status.st_dev, status.st_ino)
            holder = os.pread(self._descriptor, CONTENT_BYTES, 0).split()[:1]
            self._parent = os.getppid() if holder == [b"%d" % os.getppid()] else None
            if min(self._cost() for _ in range(5)) > DEAR_SECONDS:
                self._interval = DEAR_CHECK_SECONDS
        except OSError as error:
            self.probe.note("it cannot be seen whether the supervisor lives", str(error))

    def _cost(self):
        began = time.monotonic()
        self._can_lock(self._descriptor)
        return time.monotonic() - began

    def forget(self):
        """After a fork. A descriptor shares its locks with its copies, so that the parent's must be closed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def check(self, now):
        """At a step of the clock, once `next_at` is reached."""
        if self._descriptor < 0:
            self.next_at = float("inf")
            return
        self.next_at = now + self._interval
        if self._parent is not None and os.getppid() == self._parent:
            return
        if self._can_lock(self._descriptor) and self._is_really_gone():
            content = os.pread(self._descriptor, CONTENT_BYTES, 0)
            self.forget()
            if ENDED not in content.split():
                self._stop()

    def _can_lock(self, descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EINTR):
                self._descriptor = -1
                self.probe.note("it cannot be seen whether the supervisor lives", str(error))
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return True

    def _is_really_gone(self):
        """A program that closes descriptors which it did not open may have given our number to another file."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == self._identity:
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
