"""One rank's events, a JSON line each, written the moment they are known.

A full disk or a folder that went away stops the writing, never the training: lines are dropped and counted, and when a
line gets through again a note says how many were lost.
"""

import errno
import json
import math
import os
import time

from . import protocol, redact

RETRY_SECONDS = 5.0
ALWAYS_WRITTEN = frozenset(["probe-attached", "coverage", "step", "steps", "schedule", "probe-note", "process-exiting"])
"""Events whose number is bounded where they are made. All others share an allowance, so that a million steps stay small."""
REDACTED = frozenset(
    ["probe-attached", "settings", "saved", "snapshot", "snapshot-failed", "snapshot-corrupt", "restored", "probe-note"]
)
"""Events with words of other people in them: paths, settings, messages. All others hold numbers and names of tensors."""
SENTENCES = frozenset(["why", "detail"])
ALLOWANCE_BYTES = 4000000
ALLOWANCE_BYTES_PER_STEP = 10

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
"""Made once: json.dumps with settings makes an encoder for every line."""


def plain(value):
    """The value as JSON can hold it: NaN and the infinities become words."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def short(number):
    """Nine digits bring any float32 back exactly and keep the lines short."""
    return float("%.9g" % number)


def redacted(fields):
    """The fields without secrets. Never raises: what cannot be redacted is not written."""
    redactor = redact.of_this_process()

    def of(name, value):
        if isinstance(value, str):
            return redactor.value(name, value) if name else redactor.name(value)
        if isinstance(value, dict):
            return {redact.readable(str(key)): of(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [of("", item) for item in value]
        return value

    try:
        # Names of our own fields say nothing of what is in them; those of a framework's settings do.
        return {
            name: redactor.text(value) if name in SENTENCES and isinstance(value, str) else of("", value)
            for name, value in fields.items()
        }
    except Exception:
        return {name: value for name, value in fields.items() if not isinstance(value, (str, dict, list, tuple))}


def encoded(event, fields):
    line = {"event": event, "at": round(time.time(), 3)}
    line.update(plain(redacted(fields) if event in REDACTED else fields))
    return _encode(line).encode("utf-8") + b"\n"


class EventWriter(object):
    def __init__(self, attempt_dir, rank, pid):
        self.primary = True
        self._identity = None
        self._descriptor = -1
        self._path = os.path.join(attempt_dir, protocol.rank_file(rank))
        self._torn = False
        self._lost = 0
        self._retry_at = 0.0
        self._allowance = ALLOWANCE_BYTES
        self._allowance_noted = False
        try:
            self._open(os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            self.primary = False
            self._path = os.path.join(attempt_dir, protocol.rank_file(rank, pid))
            self._try_to_open()
        except OSError:
            self._fail()

    def write(self, event, fields, step=0):
        """Never raises. An event beyond the allowance, or while nothing can be written, is dropped."""
        line = encoded(event, fields)
        if event not in ALWAYS_WRITTEN and not self._afford(len(line), step):
            return
        if self._retry_at and not self._recover():
            self._lost += 1
            return
        self._put(line)

    def write_all(self, event, several):
        """Lines of an event whose number is bounded, in one go: a system call costs as much as a line."""
        if self._retry_at and not self._recover():
            self._lost += len(several)
            return
        if not self._put(b"".join([encoded(event, fields) for fields in several])):
            self._lost += len(several) - 1

    def close(self):
        if self._descriptor >= 0:
            try:
                if self._is_ours():
                    os.close(self._descriptor)
            except OSError:
                pass
            self._descriptor = -1

    def forget(self):
        """After a fork: the file is the parent's."""
        self.close()
        self._retry_at = math.inf

    def _afford(self, size, step):
        allowed = self._allowance + ALLOWANCE_BYTES_PER_STEP * step
        if size > allowed:
            if not self._allowance_noted:
                self._allowance_noted = True
                self.write("probe-note", {"what": "some events are no longer written, to keep this file small"})
            return False
        self._allowance -= size
        return True

    def _open(self, extra=0):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | extra
        self._descriptor = os.open(self._path, flags, 0o600)
        self._identity = self._file_identity()
        self._retry_at = 0.0

    def _try_to_open(self):
        try:
            self._open(os.O_CREAT)
        except OSError:
            self._fail()

    def _file_identity(self):
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def _is_ours(self):
        """A program that closes descriptors it did not open may have given our number to a file of its own."""
        try:
            return self._file_identity() == self._identity
        except OSError:
            return False

    def _put(self, line):
        try:
            if not self._is_ours():
                self._open(os.O_CREAT)
            if os.write(self._descriptor, line) == len(line):
                return True
            self._torn = True
        except OSError as error:
            if error.errno == errno.EINTR:
                return self._put(line)
        self._lost += 1
        self._fail()
        return False

    def _fail(self):
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _recover(self):
        """Whether lines can be written again; the torn one, if any, is ended first so that it spoils no other."""
        if time.monotonic() < self._retry_at:
            return False
        lost, torn = self._lost, self._torn
        note = encoded(
            "probe-note", {"what": "events were lost: they could not be written", "detail": "%d lines" % lost}
        )
        if self._descriptor < 0:
            self._try_to_open()
            if self._retry_at:
                return False
        if not self._put((b"\n" if torn else b"") + note):
            self._lost = lost
            self._torn = torn or self._torn
            return False
        self._lost, self._torn, self._retry_at = 0, False, 0.0
        return True
