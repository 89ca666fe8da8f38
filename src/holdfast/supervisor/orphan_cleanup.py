"""Cleanup after a supervisor that is gone: a training stops automatically at its next step; other processes are stopped here."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import psutil

from holdfast.process.process_identity import AttemptProcesses, ProcessIdentity, find_own_ancestry, is_alive, send_to

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

POLL_S = 0.05
KILL_S = 5.0
"""How long a killed process may take to disappear."""
CLOCK_SLACK_S = 5.0
"""The journal's clock and the system's start times differ by less than this, unless the clock was set."""
MAX_REPORTED = 10


def end_leftovers(folders: Collection[Path], recorded: Collection[ProcessIdentity], grace_s: float) -> list[int]:
    """Stop all processes of the attempts with these folders: SIGTERM, wait `grace_s`, SIGKILL. Return the pids that remain."""
    processes = AttemptProcesses(folders, recorded)
    signalled: set[psutil.Process] = set()
    deadline = time.monotonic() + grace_s
    while (left := processes.find()) and time.monotonic() < deadline:
        new = [process for process in left if process not in signalled]
        send_to(new, signal.SIGTERM)
        send_to(new, signal.SIGCONT)
        signalled.update(new)
        time.sleep(POLL_S)  # not psutil.wait_procs: it would reap the exit status of a child process
    deadline = time.monotonic() + KILL_S
    while (left := processes.find()) and time.monotonic() < deadline:
        send_to(left, signal.SIGKILL)
        time.sleep(POLL_S)  # not psutil.wait_procs: it would reap the exit status of a child process
    return [process.pid for process in left]


def find_unidentified(mentioned: Mapping[int, float], recorded: ProcessIdentity) -> list[int]:
    """Return the recorded pids that may still belong to the same process. `mentioned` maps each pid to when it was recorded.

    Call it after `end_leftovers`, when identified processes are gone. A process that started after its pid was recorded is
    a different one. So is every process if pids were assigned anew, as after a reboot.
    """
    if recorded.is_elsewhere():
        return []
    found, own_pids = [], find_own_ancestry()
    for pid, at in sorted(mentioned.items()):
        if pid in own_pids:
            continue
        try:
            process = psutil.Process(pid)
            if pid == recorded.pid and recorded.start and not recorded.matches(process):
                continue  # its start time shows that it is a different process
            if is_alive(process) and process.create_time() <= at + CLOCK_SLACK_S:
                found.append(pid)
        except (psutil.Error, ValueError, OverflowError):
            continue
    return found[:MAX_REPORTED]
