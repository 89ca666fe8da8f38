"""All processes that a child brought into the world, however far they went: those that must end when it ends."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import psutil

from holdfast.process.process_identity import carries_mark, is_alive, send_to, session_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Descendants:
    """A process, its descendants, and the members of their sessions.

    A descendant whose parent died belongs to nobody's tree any more, so every look remembers what it saw: by pid and time
    of creation, since pids come again. torchrun starts its ranks in sessions of their own; data loader workers stay in
    the session of the process that loads.
    """

    def __init__(self, root: int, attempt: Path | None = None) -> None:
        """`attempt` is the folder that the root's environment names, where it names one."""
        self._root = root
        self._attempt = attempt
        self._seen: dict[int, psutil.Process] = {}
        self._session_leaders: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error, OSError):
            self._add([psutil.Process(root)])

    def living(self) -> list[psutil.Process]:
        """The processes that run now, the root first where it is among them. Zombies have ended."""
        self._seen = {pid: process for pid, process in self._seen.items() if is_alive(process)}
        with contextlib.suppress(OSError):  # no descriptor is free to look with: what is known is known
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
            session = session_of(pid)
            if session not in self._session_leaders or self._has_come_again(session):
                continue
            inhabited.add(session)
            if pid not in self._seen:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pid)
                    if self._is_proven(process, session):
                        self._add([process])
        # A session that has died out is forgotten, since its number may come again as someone else's.
        self._session_leaders = {pid: leader for pid, leader in self._session_leaders.items() if pid in inhabited}

    def _is_proven(self, process: psutil.Process, session: int) -> bool:
        """A session's number is not given again while one of its members lives. Between two looks all of them may have died, so that
        without its leader or another known member a process has to say itself whose it is.
        """
        if self._attempt is None or self._session_leaders[session].is_running():
            return True
        known = (pid for pid, seen in self._seen.items() if session_of(pid) == session and is_alive(seen))
        return next(known, None) is not None or carries_mark(process, [self._attempt])

    def _has_come_again(self, session: int) -> bool:
        return not self._session_leaders[session].is_running() and psutil.pid_exists(session)

    def _add(self, processes: Iterable[psutil.Process]) -> None:
        for process in processes:
            if process.pid not in self._seen and is_alive(process):
                self._seen[process.pid] = process
                if session_of(process.pid) == process.pid:
                    self._session_leaders[process.pid] = process
