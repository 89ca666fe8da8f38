"""What a supervisor that is gone left running: a training stops by itself at its next step; all else is ended here."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil

from holdfast.process.process_identity import AttemptProcesses, ProcessIdentity, find_own_ancestry, is_alive, send_to

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

LOOK_S = 0.05
KILL_S = 5.0
"""How long a killed process may take to be gone."""
CLOCK_SLACK_S = 5.0
"""The journal's clock and the system's start times differ by less than this, unless the clock was set."""
MAX_NAMED = 10


def end_leftovers(folders: Collection[Path], recorded: Collection[ProcessIdentity], grace_s: float) -> list[int]:
    """End what still lives of the attempts with these folders: ask, wait so long, then kill. Returns what even that did not end."""
    processes = AttemptProcesses(folders, recorded)
    asked: set[psutil.Process] = set()
    deadline = time.monotonic() + grace_s
    while (left := processes.find()) and time.monotonic() < deadline:
        new = [process for process in left if process not in asked]
        send_to(new, signal.SIGTERM)
        send_to(new, signal.SIGCONT)
        asked.update(new)
        time.sleep(LOOK_S)  # not psutil.wait_procs: it would take the exit status of a child of ours
    deadline = time.monotonic() + KILL_S
    while (left := processes.find()) and time.monotonic() < deadline:
        send_to(left, signal.SIGKILL)
        time.sleep(LOOK_S)  # not psutil.wait_procs: it would take the exit status of a child of ours
    return [process.pid for process in left]


def find_unidentified(mentioned: Mapping[int, float], recorded: ProcessIdentity) -> list[int]:
    """Of the pids that a record mentions, each with the time of that: those that may still be what they were then.

    To be asked after `end_leftovers`: what could be identified is gone by then. A process that started after its pid was mentioned is
    another one, and so is everything where pids were given anew.
    """
    if recorded.is_elsewhere():
        return []
    found, own = [], find_own_ancestry()
    for pid, at in sorted(mentioned.items()):
        if pid in own:
            continue
        try:
            process = psutil.Process(pid)
            if pid == recorded.pid and recorded.start and not recorded.matches(process):
                continue  # of the recorded one it is known whether it is the one that lives now
            if is_alive(process) and process.create_time() <= at + CLOCK_SLACK_S:
                found.append(pid)
        except (psutil.Error, ValueError, OverflowError):
            continue
    return found[:MAX_NAMED]
