"""A small memory-mapped file that says where each rank is, and survives SIGKILL.

The supervisor makes it (`create`), the probe writes its rank's slot (`Heart`), anyone reads (`read`). A slot's numbers are
written one by one, each at an aligned offset, so that a reader never sees half a number.
"""

import mmap
import os
import struct
from typing import Dict, NamedTuple

MAGIC = b"HFHB"
VERSION = 1
SLOTS = 256
SLOT_SIZE = 128
HEADER_SIZE = 64
SIZE = HEADER_SIZE + SLOTS * SLOT_SIZE

_HEADER = struct.Struct("<4sIII")
_SLOT = struct.Struct("<QdddQQQqII")
_Q = struct.Struct("<Q")
_q = struct.Struct("<q")
_D = struct.Struct("<d")
_I = struct.Struct("<I")
_STEP_AND_TIME = struct.Struct("<Qdd")
_PULSE = struct.Struct("<ddQQ")

PHASES = ("starting", "training", "evaluating", "saving", "waiting for data", "ended")
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}


class Beat(NamedTuple):
    """One rank's slot."""

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
    """Every slot in use, rank -> Beat. An unreadable or foreign file has none."""
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE)
    except OSError:
        return {}
    if len(data) < SIZE or _HEADER.unpack_from(data)[:2] != (MAGIC, VERSION):
        return {}
    beats = {}
    for rank in range(SLOTS):
        values = _SLOT.unpack_from(data, HEADER_SIZE + rank * SLOT_SIZE)
        if values[8]:
            phase = PHASES[values[9]] if values[9] < len(PHASES) else "unknown"
            beats[rank] = Beat._make((*values[:9], phase))
    return beats


class Heart(object):
    """The probe's end: one rank's slot, open for writing."""

    def __init__(self, path: str, rank: int, pid: int, step: int = 0) -> None:
        if not 0 <= rank < SLOTS:
            raise ValueError("rank %d has no slot" % rank)
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._base = HEADER_SIZE + rank * SLOT_SIZE
        _SLOT.pack_into(self._map, self._base, step, 0.0, 0.0, float("nan"), 0, 0, 0, -1, pid, 0)

    def step(self, number: int, at: float, mono: float) -> None:
        _STEP_AND_TIME.pack_into(self._map, self._base, number, at, mono)

    def pulse(self, mono: float, loss: float, backwards: int, fetches: int) -> None:
        """A sign of life with what is known: one call where four would do, because it comes several times a step."""
        _PULSE.pack_into(self._map, self._base + 16, mono, loss, backwards, fetches)

    def active(self, mono: float) -> None:
        _D.pack_into(self._map, self._base + 16, mono)

    def loss(self, value: float) -> None:
        _D.pack_into(self._map, self._base + 24, value)

    def backwards(self, count: int) -> None:
        _Q.pack_into(self._map, self._base + 32, count)

    def fetches(self, count: int) -> None:
        _Q.pack_into(self._map, self._base + 40, count)

    def saves(self, count: int) -> None:
        _Q.pack_into(self._map, self._base + 48, count)

    def epoch(self, number: int) -> None:
        _q.pack_into(self._map, self._base + 56, number)

    def phase(self, name: str) -> None:
        _I.pack_into(self._map, self._base + 68, _PHASE_NUMBERS[name])

    def close(self) -> None:
        self._map.close()
