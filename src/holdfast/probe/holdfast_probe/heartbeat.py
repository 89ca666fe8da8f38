"""A small table with the progress of each training process, which survives SIGKILL.

The supervisor creates it (`create`), the probe writes the slot of its process (`Heart`), and anyone reads it (`read`).
Between two steps a system call takes 10 to 30 microseconds, a write to mapped memory 4. So on Linux the table is a
mapped file in /dev/shm, and the run's file contains its path. A file there cannot be truncated or run out of space,
which would raise SIGBUS in the training. On other systems the table is the run's file itself, and it is written. In
both cases the kernel has the data, regardless of what happens to the process. A slot lies within one page and its
numbers are aligned, so that a reader never sees half a number.
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
"""Between two steps, a heartbeat younger than this is not written again, so that short steps need one write each."""
MARK = 0x48464842
"""File position of the probe's descriptor, used to recognize it. Nothing is read or written there, because all writes
give an offset."""
HIGH_DESCRIPTOR = 900
"""New files get the lowest free number. A number this high is hardly ever reused, even if a program closes the
descriptor."""
MAX_LOCK_TRIES = 50
LOCK_RETRY_SECONDS = 0.001

MEMORY = "/dev/shm"  # noqa: S108 - Holdfast's files there have random names and are private
ELSEWHERE = b"HFHB is in "
_TABLE_PATH = re.compile(re.escape(MEMORY) + r"/holdfast-[0-9]+-[0-9a-f]{16}")
"""No other path in a run's file is ever read or removed."""

PHASES = ("starting", "training", "evaluating", "saving", "waiting for data", "ended")
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
IN_EVERY_STEP = ("training", "waiting for data")
"""Phases that change with every step: they are written together with the heartbeats of the step."""

Pulse = Tuple[float, float, int, int]
"""Monotonic time, the last loss, and how many backwards and fetches there were."""


class Beat(NamedTuple):
    """One process's slot."""

    step: int
    """The last finished step."""
    step_at: float
    """Its wall time; 0 before the first."""
    active_mono: float
    """Monotonic time of the last heartbeat."""
    loss: float
    """The last known loss; NaN if there is none."""
    backwards: int
    fetches: int
    saves: int
    epoch: int
    """-1 if unknown."""
    pid: int
    phase: str


def create(path: str, in_memory: bool = True, pid_space: str = "") -> None:
    """Create a table with empty slots, and replace the one that `path` referred to. In memory, the owner is stored
    after the table: the boot and PID namespace in which its pids are valid, and the run's file.
    """
    before = find_table(path)
    table = _HEADER.pack(MAGIC, VERSION, SLOTS, SLOT_SIZE).ljust(HEADER_SIZE, b"\0") + b"\0" * (SLOTS * SLOT_SIZE)
    owner = pid_space.encode("ascii", "replace") + b"\0" + os.fsencode(os.path.abspath(path))
    table_path = _write_to_memory(table + owner) if in_memory else None
    _replace(path, table if table_path is None else ELSEWHERE + table_path.encode("ascii"))
    _remove_from_memory(before)


def settle(path: str) -> None:
    """Move the table from memory to the run's own file, once nobody writes to it any more."""
    table_path = find_table(path)
    if table_path == path:
        return
    table = _read_table(table_path)
    if table is not None:
        _replace(path, table)
    _remove_from_memory(table_path)


def find_table(path: str) -> str:
    """Return the path of the table: the run's file itself, or the file in memory that it refers to."""
    content = _read_start(path, 256)
    if content is None:
        return path
    table_path = content[len(ELSEWHERE) :].decode("ascii", "replace") if content.startswith(ELSEWHERE) else ""
    return table_path if _TABLE_PATH.fullmatch(table_path) else path


def read(path: str) -> Dict[int, Beat]:
    """Return all slots in use, slot -> Beat. An unreadable or foreign file has none. The first process of rank r has
    slot r; further processes have slots from the upper end.
    """
    data = _read_table(find_table(path))
    if data is None:
        return {}
    beats = {}
    for slot in range(SLOTS):
        values = _SLOT.unpack_from(data, HEADER_SIZE + slot * SLOT_SIZE)
        if values[8]:
            phase = PHASES[values[9]] if values[9] < len(PHASES) else "unknown"
            beats[slot] = Beat._make((*values[:9], phase))
    return beats


def _read_table(path: str) -> "bytes | None":
    data = _read_start(path, SIZE)
    is_valid = data is not None and len(data) == SIZE and _HEADER.unpack_from(data)[:2] == (MAGIC, VERSION)
    return data if is_valid else None


def _read_start(path: str, size: int) -> "bytes | None":
    """Return the first bytes of a file, or None if it cannot be read. Only regular files are read, and symbolic links
    are not followed: a pipe cannot block the reader, and a planted link is not read.
    """
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


def _create(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _replace(path: str, content: bytes) -> None:
    temporary = "%s.%s.tmp" % (path, os.urandom(8).hex())
    try:
        _create(temporary, content)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _write_to_memory(table: bytes) -> "str | None":
    path = "%s/holdfast-%d-%s" % (MEMORY, os.getpid(), os.urandom(8).hex())
    try:
        _create(path, table)
        return path
    except OSError:
        _remove_from_memory(path)
        return None


def _remove_from_memory(path: str) -> None:
    if _TABLE_PATH.fullmatch(path):
        try:
            os.unlink(path)
        except OSError:
            pass


class Heart(object):
    """The probe's side: one slot, open for writing. A write that fails is tried again with the next one."""

    def __init__(self, path: str, slot: "int | None", pid: int, step: int = 0, world_size: int = 1) -> None:
        """Open the given slot. Without one, take a free slot above those of the ranks."""
        if slot is not None and not 0 <= slot < SLOTS:
            raise ValueError("rank %d has no slot" % slot)
        self._path = find_table(path)
        self._data = memoryview(bytearray(_SLOT.pack(step, 0.0, 0.0, float("nan"), 0, 0, 0, -1, pid, 0)))
        self.written_at = 0.0
        """Monotonic time of the last write."""
        self._map = None
        self._descriptor = _open(self._path)
        self._identity = file_identity(self._descriptor)
        try:
            if slot is None:
                self._take_free_slot(pid, world_size)
            else:
                self._base = HEADER_SIZE + slot * SLOT_SIZE
                self._write()
            self._map = self._map_slot() if self._path != path else None
        except BaseException:
            self.close()
            raise

    def step(self, number: int, at: float, pulse: "Pulse", phase: str) -> None:
        """Record a finished step in the file before anything else happens."""
        _STEP.pack_into(self._data, 0, number, at, *pulse)
        self._data[_PHASE_AT] = _PHASE_NUMBERS[phase]
        if self._map is not None:
            self.written_at = pulse[0]
            return
        is_fresh = pulse[0] - self.written_at < FRESH_SECONDS
        self.written_at = pulse[0]
        self._write(is_fresh)

    def make_step_writer(self) -> "Callable[[int, float, float, float, int, int], None]":
        """Return a faster `step` for steps between which the phase does not change. The caller sets `written_at`."""
        if self._map is not None:
            return functools.partial(_STEP.pack_into, self._data, 0)
        phase = PHASES[self._data[_PHASE_AT]]
        return lambda number, at, *pulse: self.step(number, at, pulse, phase)

    def beat(self, pulse: "Pulse", phase: str) -> None:
        """Write a heartbeat. Between steps, the caller skips those that would follow the last one too soon."""
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
        if self._is_own_file():
            os.close(self._descriptor)
        self._descriptor = -1

    def _map_slot(self) -> "mmap.mmap | None":
        """Map the slot, so that from now on every change of `_data` is in the file."""
        try:
            mapped = mmap.mmap(self._descriptor, SIZE)
        except (OSError, ValueError):
            return None
        self._data = memoryview(mapped)[self._base : self._base + _SLOT.size]
        return mapped

    def _write(self, is_fresh: bool = False) -> None:
        if self._map is not None:
            return
        try:
            if is_fresh or self._is_own_file() or self._reopen():
                os.pwrite(self._descriptor, self._data, self._base)
        except OSError:
            pass

    def _is_own_file(self) -> bool:
        """Return True if the descriptor still refers to the table. A program that closes descriptors it did not open
        may have reused the number for its own file. The probe's descriptor has a file position that no other file has;
        comparing the file's identity would take four times as long. Within two milliseconds this is not checked again,
        which saves a system call in every very short step.
        """
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_CUR) == MARK
        except OSError:
            return False

    def _reopen(self) -> bool:
        """Open the table again. Return False if the path now belongs to another attempt's file."""
        descriptor = _open(self._path)
        if file_identity(descriptor) != self._identity:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def _take_free_slot(self, pid: int, world_size: int) -> None:
        """Take the highest slot that is free or whose process is gone. Other processes may be doing the same."""
        locked = self._lock()
        try:
            for slot in range(SLOTS - 1, world_size - 1, -1):
                self._base = HEADER_SIZE + slot * SLOT_SIZE
                data = os.pread(self._descriptor, _PID.size, self._base + _PID_AT)
                owner = _PID.unpack(data)[0] if len(data) == _PID.size else 0
                if owner in (0, pid) or not process_exists(owner):
                    self._write()
                    return
        finally:
            if locked:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        raise ValueError("every slot is taken")

    def _lock(self) -> bool:
        """Lock the table, if possible. Without the lock two processes may share a slot, which still shows that they live."""
        for _ in range(MAX_LOCK_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(LOCK_RETRY_SECONDS)
            except OSError:
                return False
        return False


def _open(path: str) -> int:
    low = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(low, MARK, os.SEEK_SET)
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:  # such a high number is not allowed here
        return os.dup(low)
    finally:
        os.close(low)


def file_identity(descriptor: int) -> Tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
