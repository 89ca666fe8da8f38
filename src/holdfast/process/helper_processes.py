"""Processes and scratch folders that must not outlive this process: dry runs, trials, interpreters that are asked, readers.

Each such process has a mark of ours in its environment, which all that it starts inherits: whoever bears it is ours, whatever its
pid, its session or its parent. `end` ends them all, from whichever thread. A watchdog, a small process of its own that waits on a
pipe from here, does the same where this process is killed and cannot.

Only a process that bears the mark is ever signalled, and by psutil, which asks first whether the pid still is the same process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from holdfast.process.python_command import program
from holdfast.storage.safe_files import open_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import psutil

MARK = "STARTED_BY_HOLDFAST"
"""The variable. Not one of HOLDFAST_...: a supervisor inside of a dry run keeps those from its training."""
PREFIX = "holdfast-scratch-"
LOCK = "lock"
"""In each scratch folder: this process holds it for as long as it lives."""
GRACE_S = 3.0
"""Between asking to end and ending."""
UNLOCKED_AGE_S = 3600.0
"""A folder without a lock may have been made this moment; after this it is left behind."""
START_SLACK_S = 5.0
"""Our time of a start and the system's differ by less than this."""
SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER = 36, 37
"""Of prctl, on Linux."""
ROUNDS = 5
"""A process may start another one while it is ended."""
PROGRAM = "from holdfast.process.helper_processes import watch; watch()"


class BeingEnded(OSError):
    """All helper processes are being ended: no further one starts."""

    def __init__(self) -> None:
        super().__init__("holdfast was interrupted")


class HelperProcesses:
    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._depth = 0
        self._ending = False
        self._mark = ""
        self._since = 0.0
        self._folders: dict[Path, BinaryIO] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._orphans: Callable[[], None] = lambda: None
        """Ends those that were adopted since the newest scratch was made."""

    @contextlib.contextmanager
    def session(self) -> Iterator[dict[str, str]]:
        """While helper processes may be started: gives the variable for their environment. The outermost session leaves none
        behind. Raises BeingEnded.
        """
        with self._guard:
            if self._ending:
                raise BeingEnded
            if not self._depth:
                self._mark, self._since = secrets.token_hex(16), time.time()
                self._watchdog = _start_watchdog(self._mark, self._since)
            self._depth += 1
            mark = self._mark
        try:
            # A check inside of a dry run is part of that one too.
            yield {MARK: " ".join([*os.environ.get(MARK, "").split(), mark])}
        finally:
            with self._guard:
                self._depth -= 1
                if not self._depth and not self._ending:
                    self._finish()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """A new folder that only this user can enter, and the variable for the environment of what works in it."""
        with self.session() as variables:
            remove_left_behind()
            folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
            with contextlib.ExitStack() as last:
                last.callback(self._remove, folder)
                self._own(folder)
                self._orphans = last.enter_context(adopting_orphans(self._is_known))
                yield folder, variables

    def end(self) -> list[str]:
        """End all of them and remove the folders; no further one starts before `begin_again`. What could not be ended or removed."""
        with self._guard:
            self._ending = True
            return self._finish() if self._mark else []

    def begin_again(self) -> None:
        with self._guard:
            self._ending = False

    def _is_known(self, process: psutil.Process) -> bool:
        """Whether we started it ourselves, or will find it by its mark."""
        if self._watchdog is not None and process.pid == self._watchdog.pid:
            return True
        return self._mark in process.environ().get(MARK, "").split()

    def _finish(self) -> list[str]:
        left = [f"process {process.pid}" for process in end_marked(self._mark, self._since)]
        self._orphans()
        left += [str(folder) for folder in list(self._folders) if not self._remove(folder)]
        self._tell({"done": True})
        if self._watchdog is not None:
            with contextlib.suppress(OSError, ValueError):
                assert self._watchdog.stdin is not None
                self._watchdog.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(GRACE_S)
        self._watchdog, self._mark = None, ""
        return left

    def _own(self, folder: Path) -> None:
        with self._guard:
            lock = (folder / LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._folders[folder] = lock
            self._tell({"folder": str(folder)})

    def _remove(self, folder: Path) -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        with self._guard:
            lock = self._folders.pop(folder, None)
            if lock is not None:
                lock.close()
            self._tell({"removed": str(folder)})
        return not folder.exists()

    def _tell(self, what: dict[str, object]) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._watchdog is not None and self._watchdog.stdin is not None:
                self._watchdog.stdin.write(json.dumps(what).encode() + b"\n")
                self._watchdog.stdin.flush()


helpers = HelperProcesses()
"""Of this process."""


# --- ending -----------------------------------------------------------------------------------------------------------


def end_marked(mark: str, since: float, grace_s: float = GRACE_S) -> list[psutil.Process]:
    """End all that bear this mark. Those that live all the same."""
    return end_processes(lambda process: mark in process.environ().get(MARK, "").split(), since, grace_s)


def end_processes(
    is_ours: Callable[[psutil.Process], bool], since: float, grace_s: float = GRACE_S
) -> list[psutil.Process]:
    """Ask those to end that are ours, then end them, and what they start meanwhile. Those that live all the same.

    `is_ours` may raise what psutil raises. Nothing that started before `since` is asked about.
    """
    import psutil  # noqa: PLC0415 - the watchdog seldom needs it

    def found() -> list[psutil.Process]:
        known = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.create_time() < since - START_SLACK_S:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE and is_ours(process):
                    known.append(process)
        return known

    def tell(processes: Iterable[psutil.Process], how: Callable[[psutil.Process], None]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                how(process)

    ours = found()
    if ours:
        tell(ours, lambda process: process.terminate())
        _wait_for(ours, grace_s)
        ours = found()
    for _ in range(ROUNDS):
        if not ours:
            break
        tell(ours, lambda process: process.kill())
        _wait_for(ours, grace_s)
        ours = found()
    return ours


def _wait_for(processes: list[psutil.Process], seconds: float) -> None:
    """Until none of them lives. They are not reaped: whoever started one may still ask for its exit code."""
    import psutil  # noqa: PLC0415 - the watchdog seldom needs it

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        alive = False
        for process in processes:
            with contextlib.suppress(psutil.Error):
                alive = alive or (process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        if not alive:
            return
        time.sleep(0.02)


# --- orphans ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def adopting_orphans(is_known: Callable[[psutil.Process], bool]) -> Iterator[Callable[[], None]]:
    """While this lasts, a process below us whose parent ends becomes our child (Linux), and at its end no such one is left: also none
    that left its session and gave up its environment. Elsewhere nothing is adopted. Gives what ends them sooner.

    `is_known` tells of children of ours that are no orphans; it may raise what psutil raises.
    """
    import psutil  # noqa: PLC0415 - as above

    before = _subreaper(1)
    if before is None:
        yield lambda: None
        return
    children = {child.pid for child in psutil.Process().children()}
    since = time.time()
    is_over = False

    def end() -> None:
        if not is_over:
            _end_orphans(children, is_known, since)

    try:
        yield end
    finally:
        end()
        is_over = True
        _subreaper(before)


def _end_orphans(children: set[int], is_known: Callable[[psutil.Process], bool], since: float) -> None:
    import psutil  # noqa: PLC0415 - as above

    own = psutil.Process()

    def is_orphan(process: psutil.Process) -> bool:
        line = [process, *process.parents()]
        pids = [each.pid for each in line]
        if own.pid not in pids[1:]:
            return False
        adopted = line[pids.index(own.pid) - 1]
        return adopted.pid not in children and not is_known(adopted)

    end_processes(is_orphan, since, GRACE_S)
    with contextlib.suppress(psutil.Error, OSError):
        for child in own.children():
            # One by one: a wait for any child would take the exit code of somebody else's.
            if child.pid not in children and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _subreaper(wanted: int) -> int | None:
    """Set whether orphans below this process become its children. What it was before; None where that is not known or not possible."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int(0)
        if library.prctl(GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
            return None
        return before.value if library.prctl(SET_CHILD_SUBREAPER, wanted, 0, 0, 0) == 0 else None
    except (OSError, AttributeError):
        return None


# --- the watchdog -----------------------------------------------------------------------------------------------------


def _start_watchdog(mark: str, since: float) -> subprocess.Popen[bytes] | None:
    try:
        process = subprocess.Popen(
            program([sys.executable], PROGRAM),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends our process group does not end it
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"mark": mark, "since": since}).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        return None
    return process


def watch() -> None:
    """The watchdog: where its input ends without a last word, it ends what still runs, and removes the folders."""
    mark, since = "", 0.0
    folders: set[str] = set()
    for line in sys.stdin:
        said = json.loads(line)
        mark, since = said.get("mark", mark), said.get("since", since)
        if "folder" in said:
            folders.add(said["folder"])
        folders.discard(said.get("removed", ""))
        if said.get("done"):
            return
    if mark:
        end_marked(mark, since)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


# --- what a killed process left behind --------------------------------------------------------------------------------


def remove_left_behind(where: Path | None = None) -> list[Path]:
    """Scratch folders of this user whose owner is gone: their lock is free, and the kernel let go of it."""
    removed = []
    parent = where if where is not None else Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for folder in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):
                if _is_left_behind(folder):
                    shutil.rmtree(folder, ignore_errors=True)  # it enters no link
                    removed.append(folder)
    return removed


def _is_left_behind(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    try:
        handle = open_handle(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - status.st_mtime > UNLOCKED_AGE_S
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
