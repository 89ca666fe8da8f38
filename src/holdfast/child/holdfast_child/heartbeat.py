"""A small file that says where each process of a training is, and survives SIGKILL.

The supervisor makes it (`create`), the probe writes its process's slot (`Heart`), anyone reads (`read`). It is written, not
mapped: what was written stays in the page cache whatever happens to the process, and a full disk or a cut file is an error
here instead of a SIGBUS in the training. A slot lies within one page and its numbers are aligned, so that a reader never sees
half a number.
"""

import fcntl
import os
import struct
import time
from typing import Dict, NamedTuple

MAGIC = b"HFHB"
VERSION = 1
SLOTS = 256
SLOT_SIZE = 128
HEADER_SIZE = 64
SIZE = HEADER_SIZE + SLOTS * SLOT_SIZE

_HEADER = struct.Struct("<4sIII")
_SLOT = struct.Struct("<QdddQQQqII")
_STEP_AND_PULSE = struct.Struct("<QdddQQ")
_PULSE = struct.Struct("<ddQQ")
_SAVES = struct.Struct("<Q")
_EPOCH = struct.Struct("<q")
_PID = struct.Struct("<I")
_PHASE = struct.Struct("<I")
_PULSE_AT, _SAVES_AT, _EPOCH_AT, _PID_AT, _PHASE_AT = 16, 48, 56, 64, 68

FRESH_SECONDS = 0.002
"""Between two steps, what is younger than this on file is not written again: short steps are one write each."""
LOCK_TRIES = 50
LOCK_SECONDS = 0.001

PHASES = ("starting", "training", "evaluating", "saving", "waiting for data", "ended")
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
_IN_EVERY_STEP = (_PHASE_NUMBERS["training"], _PHASE_NUMBERS["waiting for data"])


class Beat(NamedTuple):
    """One process's slot."""

    step: int
    """The last finished step."""
    step_at: float
    """Its wall time; 0 before the first."""
    active_mono: float
    """Monotonic time of the last sign of life."""
    loss: float
    """The last loss known, NaN when none."""
    backwards: int
    fetches: int
    saves: int
    epoch: int
    """-1 when none is known."""
    pid: int
    phase: str


def create(path: str) -> None:
    """A fresh heartbeat file with every slot empty."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(temporary, "wb") as file:
            file.write(_HEADER.pack(MAGIC, VERSION, SLOTS, SLOT_SIZE).ljust(HEADER_SIZE, b"\0"))
            file.write(b"\0" * (SLOTS * SLOT_SIZE))
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def read(path: str) -> Dict[int, Beat]:
    """Every slot in use, slot -> Beat. An unreadable or foreign file has none.

    The first process of rank r has slot r; further processes have slots from the upper end.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE)
    except OSError:
        return {}
    if len(data) < SIZE or _HEADER.unpack_from(data)[:2] != (MAGIC, VERSION):
        return {}
    beats = {}
    for slot in range(SLOTS):
        values = _SLOT.unpack_from(data, HEADER_SIZE + slot * SLOT_SIZE)
        if values[8]:
            phase = PHASES[values[9]] if values[9] < len(PHASES) else "unknown"
            beats[slot] = Beat._make((*values[:9], phase))
    return beats


class Heart(object):
    """The probe's end: one slot, open for writing. Where it cannot be written the training goes on, and so do the tries."""

    def __init__(self, path: str, slot: "int | None", pid: int, step: int = 0, world_size: int = 1) -> None:
        """Without a slot of its own a process takes a free one, above those of the ranks."""
        if slot is not None and not 0 <= slot < SLOTS:
            raise ValueError("rank %d has no slot" % slot)
        self._path = path
        self._written_at = 0.0
        self._data = bytearray(_SLOT.pack(step, 0.0, 0.0, float("nan"), 0, 0, 0, -1, pid, 0))
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._identity = self._file_identity()
        try:
            if slot is None:
                self._take_free_slot(pid, world_size)
            else:
                self._base = HEADER_SIZE + slot * SLOT_SIZE
                self._write()
        except BaseException:
            self.close()
            raise

    def step(self, number: int, at: float, mono: float, loss: float, backwards: int, fetches: int) -> None:
        """A step is done: on file before anything else happens."""
        _STEP_AND_PULSE.pack_into(self._data, 0, number, at, mono, loss, backwards, fetches)
        self._written_at = mono
        self._write()

    def pulse(self, mono: float, loss: float, backwards: int, fetches: int) -> None:
        """A sign of life between steps."""
        _PULSE.pack_into(self._data, _PULSE_AT, mono, loss, backwards, fetches)
        if mono - self._written_at >= FRESH_SECONDS:
            self._written_at = mono
            self._write()

    def saves(self, count: int) -> None:
        _SAVES.pack_into(self._data, _SAVES_AT, count)
        self._write()

    def epoch(self, number: int) -> None:
        _EPOCH.pack_into(self._data, _EPOCH_AT, number)
        self._write()

    def phase(self, name: str) -> None:
        """Waiting for data comes and goes with every step: it is written with the pulse that goes with it."""
        number = _PHASE_NUMBERS[name]
        before = self._data[_PHASE_AT]
        _PHASE.pack_into(self._data, _PHASE_AT, number)
        if number not in _IN_EVERY_STEP or before not in _IN_EVERY_STEP:
            self._write()

    def close(self) -> None:
        if self._descriptor >= 0 and self._is_ours():
            os.close(self._descriptor)
        self._descriptor = -1

    def _write(self) -> None:
        try:
            if self._is_ours() or self._opened_again():
                os.pwrite(self._descriptor, self._data, self._base)
        except OSError:
            pass

    def _file_identity(self) -> "tuple[int, int]":
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def _is_ours(self) -> bool:
        """A program that closes descriptors it did not open may have given our number to a file of its own."""
        try:
            return self._file_identity() == self._identity
        except OSError:
            return False

    def _opened_again(self) -> bool:
        """By now the path may be another attempt's file, which is not for us."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if self._is_ours():
            return True
        os.close(self._descriptor)
        self._descriptor = -1
        return False

    def _take_free_slot(self, pid: int, world_size: int) -> None:
        """The highest slot that nobody has, or whose process is gone. Others may be looking for one right now."""
        locked = self._lock()
        try:
            for slot in range(SLOTS - 1, world_size - 1, -1):
                self._base = HEADER_SIZE + slot * SLOT_SIZE
                held = os.pread(self._descriptor, _PID.size, self._base + _PID_AT)
                holder = _PID.unpack(held)[0] if len(held) == _PID.size else 0
                if holder in (0, pid) or not _lives(holder):
                    self._write()
                    return
        finally:
            if locked:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        raise ValueError("every slot is taken")

    def _lock(self) -> bool:
        """Where no lock is to be had, two processes may end up with one slot: signs of life all the same."""
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(LOCK_SECONDS)
            except OSError:
                return False
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
