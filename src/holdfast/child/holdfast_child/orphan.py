"""Stops a training whose supervisor is gone.

The supervisor holds an exclusive lock on a file for as long as it lives; the kernel lets go of it whatever happens to the
supervisor. Trying for a shared lock costs about a microsecond.
"""

import errno
import fcntl
import os
import signal
import threading
import time

from . import protocol

KILL_SECONDS = 10.0
DEAR_SECONDS = 2e-5
"""A check that costs more than this (a network file system) is made once a second."""


class Orphan(object):
    def __init__(self, probe):
        self.probe = probe
        self._path = None
        self._descriptor = -1
        self._identity = None
        self._dear = False
        self._next_at = 0.0

    def watch(self, path):
        if not path or os.environ.get(protocol.OBSERVE_ONLY) == "1":
            return
        try:
            self._path = path
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
            self._identity = (status.st_dev, status.st_ino)
            began = time.monotonic()
            for _ in range(3):
                self._can_lock(self._descriptor)
            self._dear = time.monotonic() - began > 3 * DEAR_SECONDS
        except OSError as error:
            self.probe.note("it cannot be seen whether the supervisor lives", str(error))

    def forget(self):
        """After a fork. A descriptor shares its locks with its copies, so that the parent's must be closed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def check(self):
        """At each step of the clock."""
        if self._descriptor < 0:
            return
        if self._next_at and time.monotonic() < self._next_at:
            return
        if self._dear:
            self._next_at = time.monotonic() + 1.0
        if self._can_lock(self._descriptor):
            self._descriptor, descriptor = -1, self._descriptor
            if self._is_really_gone(descriptor):
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

    def _is_really_gone(self, descriptor):
        """A program that closes descriptors which it did not open may have given our number to another file."""
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == self._identity:
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
