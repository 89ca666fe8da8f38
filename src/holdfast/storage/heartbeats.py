"""Reads the heartbeats of a run: only from regular files, and only values that a training can have written.

The file is a table of raw numbers. Someone who modified the folder may have written anything: an infinite time, a PID
of 2**40.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from holdfast.probe.holdfast_probe import heartbeat

if TYPE_CHECKING:
    from holdfast.probe.holdfast_probe.heartbeat import Beat
    from holdfast.storage.folder import RunFolder

MAX_TIME = 1e11
MAX_PID = 2**31 - 1
MAX_COUNT = 10**15


def read_beats(run: RunFolder) -> dict[int, Beat]:
    """Return slot -> the last heartbeat of the process that uses it."""
    path = str(run.heartbeat)
    if not os.path.isfile(path) or not os.path.isfile(heartbeat.find_table(path)):  # noqa: PTH113
        return {}
    return {slot: beat for slot, beat in heartbeat.read(path).items() if _is_plausible(beat)}


def _is_plausible(beat: Beat) -> bool:
    return (
        math.isfinite(beat.step_at)
        and 0 <= beat.step_at <= MAX_TIME
        and 0 < beat.pid <= MAX_PID
        and 0 <= beat.step <= MAX_COUNT
    )
