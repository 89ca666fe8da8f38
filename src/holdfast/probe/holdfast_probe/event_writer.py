"""One rank's event file, with one JSON line per event, written immediately.

A full disk or a deleted folder stops the writing, never the training. Lines are dropped and counted, and when a line
can be written again, a note reports how many were lost.
"""

import errno
import json
import math
import os
import time

from . import protocol, redact
from .heartbeat import file_identity

RETRY_SECONDS = 5.0
ALWAYS_WRITTEN = frozenset(["probe-attached", "coverage", "step", "steps", "schedule", "probe-note", "process-exiting"])
"""Events whose number is limited where they are created. All others share an allowance, so that the file of a million
steps stays small."""
REDACTED = frozenset(
    ["probe-attached", "settings", "saved", "snapshot", "snapshot-failed", "snapshot-corrupt", "restored", "probe-note"]
)
"""Events that contain text from outside Holdfast: paths, settings, messages. All others contain only numbers and tensor
names."""
SENTENCES = frozenset(["why", "detail"])
ALLOWANCE_BYTES = 4000000
ALLOWANCE_BYTES_PER_STEP = 10

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
"""Created once: json.dumps with options creates an encoder for every line."""


def plain(value):
    """Return the value in a form that JSON can represent: NaN and the infinities become strings."""
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
    """Round to nine digits, which represent any float32 exactly and keep the lines short."""
    return float("%.9g" % number)


def _redact_fields(fields):
    """Return the fields without secrets. Never raises: a value that cannot be redacted is not written."""
    redactor = redact.get_process_redactor()

    def redact_value(name, value):
        if isinstance(value, str):
            return redactor.value(name, value) if name else redactor.name(value)
        if isinstance(value, dict):
            return {redact.readable(str(key)): redact_value(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [redact_value("", item) for item in value]
        return value

    try:
        # The names of Holdfast's own fields do not tell whether a value is secret; those of a framework's settings do.
        return {
            name: redactor.text(value) if name in SENTENCES and isinstance(value, str) else redact_value("", value)
            for name, value in fields.items()
        }
    except Exception:
        return {name: value for name, value in fields.items() if not isinstance(value, (str, dict, list, tuple))}


def encode_event(event, fields):
    """Return one event as a line of JSON, in bytes."""
    line = {"event": event, "at": round(time.time(), 3)}
    line.update(plain(_redact_fields(fields) if event in REDACTED else fields))
    return _encode(line).encode("utf-8") + b"\n"


class EventWriter(object):
    def __init__(self, attempt_dir, rank, pid):
        self.primary = True
        self._identity = None
        self._descriptor = -1
        self._path = os.path.join(attempt_dir, protocol.rank_file(rank))
        self._is_truncated = False
        """Whether the last line was written only in part."""
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
        """Write one event, or drop it if it exceeds the allowance or nothing can be written. Never raises."""
        line = encode_event(event, fields)
        if event not in ALWAYS_WRITTEN and not self._fits_allowance(len(line), step):
            return
        if self._retry_at and not self._recover():
            self._lost += 1
            return
        self._write_bytes(line)

    def write_all(self, event, fields_list):
        """Write several events of a kind whose number is limited at once: a system call costs as much as a line."""
        if self._retry_at and not self._recover():
            self._lost += len(fields_list)
            return
        if not self._write_bytes(b"".join([encode_event(event, fields) for fields in fields_list])):
            self._lost += len(fields_list) - 1

    def close(self):
        if self._descriptor >= 0:
            try:
                if self._is_own_file():
                    os.close(self._descriptor)
            except OSError:
                pass
            self._descriptor = -1

    def detach(self):
        """Stop writing after a fork: the file belongs to the parent."""
        self.close()
        self._retry_at = math.inf

    def _fits_allowance(self, size, step):
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
        self._identity = file_identity(self._descriptor)
        self._retry_at = 0.0

    def _try_to_open(self):
        try:
            self._open(os.O_CREAT)
        except OSError:
            self._fail()

    def _is_own_file(self):
        """Return False if the program has closed the descriptor and reused its number."""
        try:
            return file_identity(self._descriptor) == self._identity
        except OSError:
            return False

    def _write_bytes(self, line):
        try:
            if not self._is_own_file():
                self._open(os.O_CREAT)
            if os.write(self._descriptor, line) == len(line):
                return True
            self._is_truncated = True
        except OSError as error:
            if error.errno == errno.EINTR:
                return self._write_bytes(line)
        self._lost += 1
        self._fail()
        return False

    def _fail(self):
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _recover(self):
        """Return True if lines can be written again. A truncated line is terminated first."""
        if time.monotonic() < self._retry_at:
            return False
        lost, is_truncated = self._lost, self._is_truncated
        what = "events were lost: they could not be written"
        note = encode_event("probe-note", {"what": what, "detail": "%d lines" % lost, "code": "events-lost"})
        if self._descriptor < 0:
            self._try_to_open()
            if self._retry_at:
                return False
        if not self._write_bytes((b"\n" if is_truncated else b"") + note):
            self._lost = lost
            self._is_truncated = is_truncated or self._is_truncated
            return False
        self._lost, self._is_truncated, self._retry_at = 0, False, 0.0
        return True
