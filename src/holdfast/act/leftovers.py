"""The training of a supervisor that is gone: it stops by itself at its next step, or is ended here."""

from __future__ import annotations

import contextlib
import os

import psutil

START_SLACK_S = 5.0
"""The journal's time of a start and the system's differ by less than this."""


def end_leftovers(pid: int, started_at: float, grace_s: float) -> None:
    """End what still lives of an attempt: the process, its descendants, and the members of its session."""
    processes = _alive(pid, started_at)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)


def _alive(leader: int, started_at: float) -> list[psutil.Process]:
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # The pid alone could be a newcomer's; nothing of the attempt is older than its start.
            if os.getsid(process.pid) == leader and process.create_time() >= started_at - START_SLACK_S:
                found[process.pid] = process
                for descendant in process.children(recursive=True):
                    found[descendant.pid] = descendant
    return list(found.values())
