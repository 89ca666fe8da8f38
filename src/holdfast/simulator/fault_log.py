"""Faults say that they fired: a drill whose fault did not fire has shown nothing, and fails."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FIRED = "SIMULATOR_FAULT_LOG"
"""Environment variable: the file that faults write to."""

_step = [0]


def at_step(step: int) -> None:
    """The training's own count: the step that is being computed now."""
    _step[0] = step


def step_now() -> int:
    return _step[0]


def fired(what: str, detail: str = "") -> None:
    """Written at once: the process may have no further moment."""
    path = os.environ.get(FIRED)
    if path is None:
        return
    line = json.dumps({"what": what, "detail": detail, "step": _step[0], "pid": os.getpid()}) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def firings(path: Path) -> list[dict[str, Any]]:
    """What fired, in order."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
