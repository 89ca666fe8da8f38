"""The training of a supervisor that is gone: it stops by itself at its next step, or is ended here."""

from __future__ import annotations

import contextlib
import os

import psutil

START_SLACK_S = 5.0
"""The journal's time of a start and the system's differ by less than this."""


def end_leftovers(known: set[int], started_at: float, grace_s: float) -> None:
    """End what still lives of an attempt: the processes that its record names, their descendants and their sessions."""
    processes = _alive(known, started_at)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)


def _alive(known: set[int], started_at: float) -> list[psutil.Process]:
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # A pid alone could be a newcomer's; nothing of the attempt is older than its start, nor are we part of it.
            ours = process.pid in known or os.getsid(process.pid) in known
            if ours and process.create_time() >= started_at - START_SLACK_S and process.pid != os.getpid():
                found[process.pid] = process
                for descendant in process.children(recursive=True):
                    found[descendant.pid] = descendant
    return list(found.values())
