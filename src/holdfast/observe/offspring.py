"""All processes that a child brought into the world, however far they went: those that must end when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


class Offspring:
    """A process, its descendants, and the members of their sessions.

    A descendant whose parent died belongs to nobody's tree any more, so every look remembers what it saw: by pid and time
    of creation, since pids come again. torchrun starts its ranks in sessions of their own; data loader workers stay in
    the session of the process that loads.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, psutil.Process] = {}
        self._session_leaders: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            self._add([psutil.Process(root)])

    def living(self) -> list[psutil.Process]:
        """The processes that run now, the root first where it is among them. Zombies have ended."""
        self._seen = {pid: process for pid, process in self._seen.items() if _lives(process)}
        self._look_for_descendants()
        self._look_into_sessions()
        return sorted(self._seen.values(), key=lambda process: process.pid != self._root)

    def stop(self) -> None:
        """SIGSTOP to all, again as long as a process that was not yet stopped has started another."""
        stopped: set[int] = set()
        while new := [process for process in self.living() if process.pid not in stopped]:
            send_to(new, signal.SIGSTOP)
            stopped.update(process.pid for process in new)

    def _look_for_descendants(self) -> None:
        pids = set(self._seen)
        for process in list(self._seen.values()):
            with contextlib.suppress(psutil.Error):
                # A member below another member is found from there: in one walk of all processes, as a rule.
                if process.pid == self._root or process.ppid() not in pids:
                    self._add(process.children(recursive=True))

    def _look_into_sessions(self) -> None:
        inhabited = set()
        for pid in psutil.pids():
            session = _session(pid)
            if session not in self._session_leaders or self._has_come_again(session):
                continue
            inhabited.add(session)
            if pid not in self._seen:
                with contextlib.suppress(psutil.Error):
                    self._add([psutil.Process(pid)])
        # A session that has died out is forgotten, since its number may come again as someone else's.
        self._session_leaders = {pid: leader for pid, leader in self._session_leaders.items() if pid in inhabited}

    def _has_come_again(self, session: int) -> bool:
        return not self._session_leaders[session].is_running() and psutil.pid_exists(session)

    def _add(self, processes: Iterable[psutil.Process]) -> None:
        for process in processes:
            if process.pid not in self._seen and _lives(process):
                self._seen[process.pid] = process
                if _session(process.pid) == process.pid:
                    self._session_leaders[process.pid] = process


def send_to(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.send_signal(number)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
