"""The log of faults that fired. A drill whose fault did not fire proves nothing and fails."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FAULT_LOG = "SIMULATOR_FAULT_LOG"
"""Environment variable with the file that faults write to."""

_step = [0]


def set_step(step: int) -> None:
    """Set the current step, as the training counts it."""
    _step[0] = step


def current_step() -> int:
    return _step[0]


def record_fault(what: str, detail: str = "") -> None:
    """Write a fault to the log immediately: it may end the process."""
    path = os.environ.get(FAULT_LOG)
    if path is None:
        return
    line = json.dumps({"what": what, "detail": detail, "step": _step[0], "pid": os.getpid()}) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def read_faults(path: Path) -> list[dict[str, Any]]:
    """Return the faults that fired, in order."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
