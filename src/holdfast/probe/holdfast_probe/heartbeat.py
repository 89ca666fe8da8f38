"""A small table that says where each process of a training is, and survives SIGKILL.

The supervisor makes it (`create`), the probe writes its process's slot (`Heart`), anyone reads (`read`). Between two steps a
system call costs 10 to 30 microseconds, writing into mapped memory 4. So on Linux the table lies in the memory's own file system
and is mapped, and the run's file says where; nothing there can be cut or run out of room, which would be a SIGBUS in the training.
Elsewhere the table is the run's file itself, and written. Either way it is left to the kernel, whatever happens to the process.
A slot lies within one page and its numbers are aligned, so that a reader never sees half a number.
"""

import fcntl
import functools
import mmap
import os
import re
import stat
import struct
import time
from typing import Callable, Dict, NamedTuple, Tuple

MAGIC = b"HFHB"
VERSION = 1
SLOTS = 256
SLOT_SIZE = 128
HEADER_SIZE = 64
SIZE = HEADER_SIZE + SLOTS * SLOT_SIZE

_HEADER = struct.Struct("<4sIII")
_SLOT = struct.Struct("<QdddQQQqII")
_STEP = struct.Struct("<QdddQQ")
_PULSE = struct.Struct("<ddQQ")
_SAVES = struct.Struct("<Q")
_EPOCH = struct.Struct("<q")
_PID = struct.Struct("<I")
_PULSE_AT, _SAVES_AT, _EPOCH_AT, _PID_AT, _PHASE_AT = 16, 48, 56, 64, 68

FRESH_SECONDS = 0.002
"""Between two steps, what is younger than this on file is not written again: short steps are one write each."""
MARK = 0x48464842
"""Where our descriptor stands. Nothing is read or written there: what is written says where."""
HIGH_DESCRIPTOR = 900
"""New files get the lowest free number: up here ours is hardly ever anybody else's, also when a program closes it."""
LOCK_TRIES = 50
LOCK_SECONDS = 0.001

MEMORY = "/dev/shm"  # noqa: S108 - our files there have random names and are ours alone
ELSEWHERE = b"HFHB is in "
_OURS = re.compile(re.escape(MEMORY) + r"/holdfast-[0-9]+-[0-9a-f]{16}")
"""No other file is ever read or removed because a run's file names it."""

PHASES = ("starting", "training", "evaluating", "saving", "waiting for data", "ended")
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
IN_EVERY_STEP = ("training", "waiting for data")
"""Phases that come and go with every step: they are written with the signs of life that come with them."""

Pulse = Tuple[float, float, int, int]
"""Monotonic time, the last loss, and how many backwards and fetches there were."""


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


def create(path: str, in_memory: bool = True, pid_space: str = "") -> None:
    """A fresh table with every slot empty, in the place of the one that `path` had. Behind it, in memory, stands whose it is:
    the boot and the PID namespace in which the pids in it hold, and the run's file.
    """
    before = where_it_lies(path)
    table = _HEADER.pack(MAGIC, VERSION, SLOTS, SLOT_SIZE).ljust(HEADER_SIZE, b"\0") + b"\0" * (SLOTS * SLOT_SIZE)
    owner = pid_space.encode("ascii", "replace") + b"\0" + os.fsencode(os.path.abspath(path))
    lies = _put_in_memory(table + owner) if in_memory else None
    _replace(path, table if lies is None else ELSEWHERE + lies.encode("ascii"))
    _remove_from_memory(before)


def settle(path: str) -> None:
    """Nobody writes any more: the table becomes the run's own file, and leaves the memory."""
    lies = where_it_lies(path)
    if lies == path:
        return
    table = _content(lies)
    if table is not None:
        _replace(path, table)
    _remove_from_memory(lies)


def where_it_lies(path: str) -> str:
    """The file that holds the table which `path` stands for."""
    said = _beginning(path, 256)
    if said is None:
        return path
    named = said[len(ELSEWHERE) :].decode("ascii", "replace") if said.startswith(ELSEWHERE) else ""
    return named if _OURS.fullmatch(named) else path


def read(path: str) -> Dict[int, Beat]:
    """Every slot in use, slot -> Beat. An unreadable or foreign file has none.

    The first process of rank r has slot r; further processes have slots from the upper end.
    """
    data = _content(where_it_lies(path))
    if data is None:
        return {}
    beats = {}
    for slot in range(SLOTS):
        values = _SLOT.unpack_from(data, HEADER_SIZE + slot * SLOT_SIZE)
        if values[8]:
            phase = PHASES[values[9]] if values[9] < len(PHASES) else "unknown"
            beats[slot] = Beat._make((*values[:9], phase))
    return beats


def _content(path: str) -> "bytes | None":
    data = _beginning(path, SIZE)
    whole = data is not None and len(data) == SIZE and _HEADER.unpack_from(data)[:2] == (MAGIC, VERSION)
    return data if whole else None


def _beginning(path: str, size: int) -> "bytes | None":
    """None where there is no such file. Only of a regular one, and through no link: nothing is waited for, and nothing planted is read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.pread(descriptor, size, 0) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _replace(path: str, content: bytes) -> None:
    temporary = "%s.%s.tmp" % (path, os.urandom(8).hex())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _put_in_memory(table: bytes) -> "str | None":
    path = "%s/holdfast-%d-%s" % (MEMORY, os.getpid(), os.urandom(8).hex())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(table)
        return path
    except OSError:
        _remove_from_memory(path)
        return None


def _remove_from_memory(path: str) -> None:
    if _OURS.fullmatch(path):
        try:
            os.unlink(path)
        except OSError:
            pass


class Heart(object):
    """The probe's end: one slot, open for writing. Where it cannot be written the training goes on, and so do the tries."""

    def __init__(self, path: str, slot: "int | None", pid: int, step: int = 0, world_size: int = 1) -> None:
        """Without a slot of its own a process takes a free one, above those of the ranks."""
        if slot is not None and not 0 <= slot < SLOTS:
            raise ValueError("rank %d has no slot" % slot)
        self._path = where_it_lies(path)
        self._data = memoryview(bytearray(_SLOT.pack(step, 0.0, 0.0, float("nan"), 0, 0, 0, -1, pid, 0)))
        self.written_at = 0.0
        """Monotonic time of the last write."""
        self._map = None
        self._descriptor = _opened(self._path)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        try:
            if slot is None:
                self._take_free_slot(pid, world_size)
            else:
                self._base = HEADER_SIZE + slot * SLOT_SIZE
                self._write()
            self._map = self._mapped() if self._path != path else None
        except BaseException:
            self.close()
            raise

    def step(self, number: int, at: float, pulse: "Pulse", phase: str) -> None:
        """A step is done: on file before anything else happens."""
        _STEP.pack_into(self._data, 0, number, at, *pulse)
        self._data[_PHASE_AT] = _PHASE_NUMBERS[phase]
        if self._map is not None:
            self.written_at = pulse[0]
            return
        sure = pulse[0] - self.written_at < FRESH_SECONDS
        self.written_at = pulse[0]
        self._write(sure)

    def in_short(self) -> "Callable[[int, float, float, float, int, int], None]":
        """`step` without its phase, for steps between which it does not change. `written_at` is left to the caller."""
        if self._map is not None:
            return functools.partial(_STEP.pack_into, self._data, 0)
        phase = PHASES[self._data[_PHASE_AT]]
        return lambda number, at, *pulse: self.step(number, at, pulse, phase)

    def beat(self, pulse: "Pulse", phase: str) -> None:
        """A sign of life. Between steps it is for the caller to leave out what would come too soon after the last one."""
        _PULSE.pack_into(self._data, _PULSE_AT, *pulse)
        self.written_at = pulse[0]
        self.phase(phase)

    def saves(self, count: int) -> None:
        _SAVES.pack_into(self._data, _SAVES_AT, count)
        self._write()

    def epoch(self, number: int) -> None:
        _EPOCH.pack_into(self._data, _EPOCH_AT, number)
        self._write()

    def phase(self, name: str) -> None:
        self._data[_PHASE_AT] = _PHASE_NUMBERS[name]
        self._write()

    def close(self) -> None:
        if self._map is not None:
            slot, mapped = self._data, self._map
            self._data, self._map = memoryview(bytearray(slot)), None
            slot.release()
            mapped.close()
        if self._is_ours():
            os.close(self._descriptor)
        self._descriptor = -1

    def _mapped(self) -> "mmap.mmap | None":
        """From here on, what is set in `_data` is in the file."""
        try:
            mapped = mmap.mmap(self._descriptor, SIZE)
        except (OSError, ValueError):
            return None
        self._data = memoryview(mapped)[self._base : self._base + _SLOT.size]
        return mapped

    def _write(self, sure: bool = False) -> None:
        if self._map is not None:
            return
        try:
            if sure or self._is_ours() or self._opened_again():
                os.pwrite(self._descriptor, self._data, self._base)
        except OSError:
            pass

    def _is_ours(self) -> bool:
        """A program that closes descriptors it did not open may have given our number to a file of its own. Ours stands at a
        position where no other file does; asking for its identity would cost four times as much. Within two milliseconds it
        is not asked again: that is a system call for every very short step.
        """
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_CUR) == MARK
        except OSError:
            return False

    def _opened_again(self) -> bool:
        """By now the path may be another attempt's file, which is not for us."""
        descriptor = _opened(self._path)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self._identity:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def _take_free_slot(self, pid: int, world_size: int) -> None:
        """The highest slot that nobody has, or whose process is gone. Others may be looking for one right now."""
        locked = self._lock()
        try:
            for slot in range(SLOTS - 1, world_size - 1, -1):
                self._base = HEADER_SIZE + slot * SLOT_SIZE
                held = os.pread(self._descriptor, _PID.size, self._base + _PID_AT)
                holder = _PID.unpack(held)[0] if len(held) == _PID.size else 0
                if holder in (0, pid) or not lives(holder):
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


def _opened(path: str) -> int:
    low = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(low, MARK, os.SEEK_SET)
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:  # so high a number is not allowed here
        return os.dup(low)
    finally:
        os.close(low)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
