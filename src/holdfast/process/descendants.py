"""All descendants of a child, in any session: the processes that must be terminated with it."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import psutil

from holdfast.process.process_identity import get_session, has_attempt_mark, is_alive, send_to

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Descendants:
    """A process, its descendants, and the members of their sessions.

    A descendant whose parent has exited is not in the child's tree any more, so every scan remembers the processes it
    found: by pid and creation time, since pids are reused. torchrun starts its ranks in separate sessions; DataLoader
    workers stay in the session of the process that loads.
    """

    def __init__(self, root: int, attempt: Path | None = None) -> None:
        """`attempt` is the attempt folder that the root's environment names, if any."""
        self._root = root
        self._attempt = attempt
        self._known: dict[int, psutil.Process] = {}
        self._session_leaders: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error, OSError):
            self._add([psutil.Process(root)])

    def list_alive(self) -> list[psutil.Process]:
        """Return the processes that run now, the root first if it does. Zombies do not count."""
        self._known = {pid: process for pid, process in self._known.items() if is_alive(process)}
        with contextlib.suppress(OSError):  # no descriptor is free: return the processes already known
            self._find_descendants()
            self._find_session_members()
        return sorted(self._known.values(), key=lambda process: process.pid != self._root)

    def stop(self) -> None:
        """Send SIGSTOP to all; repeat while a process that was not yet stopped has started another."""
        stopped: set[int] = set()
        while new := [process for process in self.list_alive() if process.pid not in stopped]:
            send_to(new, signal.SIGSTOP)
            stopped.update(process.pid for process in new)

    def _find_descendants(self) -> None:
        pids = set(self._known)
        for process in list(self._known.values()):
            with contextlib.suppress(psutil.Error):
                # A child of another member is found through that member: usually one walk over all processes is enough.
                if process.pid == self._root or process.ppid() not in pids:
                    self._add(process.children(recursive=True))

    def _find_session_members(self) -> None:
        live_sessions = set()
        for pid in psutil.pids():
            session = get_session(pid)
            if session not in self._session_leaders or self._is_reused(session):
                continue
            live_sessions.add(session)
            if pid not in self._known:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pid)
                    if self._is_proven(process, session):
                        self._add([process])
        # Drop a session without members, since an unrelated session may reuse its number.
        self._session_leaders = {pid: leader for pid, leader in self._session_leaders.items() if pid in live_sessions}

    def _is_proven(self, process: psutil.Process, session: int) -> bool:
        """Return whether a process in this session belongs to the child.

        A session number is not reused while one of its members runs, but all of them may have exited between two scans.
        If neither the leader nor another known member runs, the process's own environment must prove it.
        """
        if self._attempt is None or self._session_leaders[session].is_running():
            return True
        known = (pid for pid, seen in self._known.items() if get_session(pid) == session and is_alive(seen))
        return next(known, None) is not None or has_attempt_mark(process, [self._attempt])

    def _is_reused(self, session: int) -> bool:
        return not self._session_leaders[session].is_running() and psutil.pid_exists(session)

    def _add(self, processes: Iterable[psutil.Process]) -> None:
        for process in processes:
            if process.pid not in self._known and is_alive(process):
                self._known[process.pid] = process
                if get_session(process.pid) == process.pid:
                    self._session_leaders[process.pid] = process
