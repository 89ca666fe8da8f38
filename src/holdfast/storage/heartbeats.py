"""The heartbeat of a run as its folder has it: regular files only, and only beats that a training can have left.

It is a table of raw numbers, and whoever changed the folder can have put anything there: an infinite time, a process of 2**40.
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
    """Slot -> the last sign of life of the process that has it."""
    path = str(run.heartbeat)
    if not os.path.isfile(path) or not os.path.isfile(heartbeat.find_table(path)):  # noqa: PTH113
        return {}
    return {slot: beat for slot, beat in heartbeat.read(path).items() if _is_possible(beat)}


def _is_possible(beat: Beat) -> bool:
    return (
        math.isfinite(beat.step_at)
        and 0 <= beat.step_at <= MAX_TIME
        and 0 < beat.pid <= MAX_PID
        and 0 <= beat.step <= MAX_COUNT
    )
