"""Processes and scratch folders that must not outlive this process: dry runs, trials, queried interpreters, readers.

Each such process has a mark of Holdfast in its environment, which everything it starts inherits. A process with the
mark is a helper, regardless of its pid, session or parent. `terminate` stops them all, from any thread. A watchdog, a
small separate process that waits on a pipe from this one, does the same if this process is killed.

Only a process with the mark is ever signalled, and through psutil, which first checks that the pid is still the same
process.
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
"""The environment variable. Its name does not start with HOLDFAST_: a supervisor inside a dry run hides those from its
training."""
PREFIX = "holdfast-scratch-"
LOCK = "lock"
"""A file in each scratch folder that this process keeps locked until it exits."""
GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""
MAX_UNLOCKED_AGE_S = 3600.0
"""A folder without a lock file may be brand new; after this time it is stale."""
START_SLACK_S = 5.0
"""The start time recorded here and the system's differ by less than this."""
SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER = 36, 37
"""Options of prctl, on Linux."""
MAX_KILL_ROUNDS = 5
"""A process may start another one while it is being killed."""
PROGRAM = "from holdfast.process.helper_processes import run_watchdog; run_watchdog()"


class HelpersStopping(OSError):
    """All helper processes are being terminated, so no new one may start."""

    def __init__(self) -> None:
        super().__init__("holdfast was interrupted")


class HelperProcesses:
    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._depth = 0
        self._is_stopping = False
        self._mark = ""
        self._since = 0.0
        self._folders: dict[Path, BinaryIO] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._terminate_orphans: Callable[[], None] = lambda: None
        """Terminates the orphans that were adopted since the newest scratch folder was created."""

    @contextlib.contextmanager
    def session(self) -> Iterator[dict[str, str]]:
        """Allow helper processes to be started; yield the variable for their environment.

        The outermost session terminates those that are left. Raises HelpersStopping.
        """
        with self._guard:
            if self._is_stopping:
                raise HelpersStopping
            if not self._depth:
                self._mark, self._since = secrets.token_hex(16), time.time()
                self._watchdog = _start_watchdog(self._mark, self._since)
            self._depth += 1
            mark = self._mark
        try:
            # A check inside a dry run belongs to that dry run too.
            yield {MARK: " ".join([*os.environ.get(MARK, "").split(), mark])}
        finally:
            with self._guard:
                self._depth -= 1
                if not self._depth and not self._is_stopping:
                    self._clean_up()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """Yield a new folder that only this user can enter, and the environment variable for processes that use it."""
        with self.session() as variables:
            remove_stale_folders()
            folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
            with contextlib.ExitStack() as stack:
                stack.callback(self._remove, folder)
                self._lock_folder(folder)
                self._terminate_orphans = stack.enter_context(adopt_orphans(self._is_known))
                yield folder, variables

    def terminate(self) -> list[str]:
        """Terminate all helpers and remove the folders; none can start before `allow_starts`.

        Return what could not be terminated or removed.
        """
        with self._guard:
            self._is_stopping = True
            return self._clean_up() if self._mark else []

    def allow_starts(self) -> None:
        with self._guard:
            self._is_stopping = False

    def _is_known(self, process: psutil.Process) -> bool:
        """Return whether it is the watchdog, or a process that the mark identifies."""
        if self._watchdog is not None and process.pid == self._watchdog.pid:
            return True
        return self._mark in process.environ().get(MARK, "").split()

    def _clean_up(self) -> list[str]:
        left = [f"process {process.pid}" for process in terminate_marked(self._mark, self._since)]
        self._terminate_orphans()
        left += [str(folder) for folder in list(self._folders) if not self._remove(folder)]
        self._notify_watchdog({"done": True})
        if self._watchdog is not None:
            with contextlib.suppress(OSError, ValueError):
                assert self._watchdog.stdin is not None
                self._watchdog.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(GRACE_S)
        self._watchdog, self._mark = None, ""
        return left

    def _lock_folder(self, folder: Path) -> None:
        with self._guard:
            lock = (folder / LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._folders[folder] = lock
            self._notify_watchdog({"folder": str(folder)})

    def _remove(self, folder: Path) -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        with self._guard:
            lock = self._folders.pop(folder, None)
            if lock is not None:
                lock.close()
            self._notify_watchdog({"removed": str(folder)})
        return not folder.exists()

    def _notify_watchdog(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._watchdog is not None and self._watchdog.stdin is not None:
                self._watchdog.stdin.write(json.dumps(message).encode() + b"\n")
                self._watchdog.stdin.flush()


helpers = HelperProcesses()
"""The helpers of this process."""


# --- termination ------------------------------------------------------------------------------------------------------


def terminate_marked(mark: str, since: float, grace_s: float = GRACE_S) -> list[psutil.Process]:
    """Terminate all processes with this mark. Return the survivors."""
    return terminate_processes(lambda process: mark in process.environ().get(MARK, "").split(), since, grace_s)


def terminate_processes(
    is_ours: Callable[[psutil.Process], bool], since: float, grace_s: float = GRACE_S
) -> list[psutil.Process]:
    """Send SIGTERM, then SIGKILL, to the processes for which `is_ours` is true and to those they start meanwhile.

    Return the survivors. `is_ours` may raise what psutil raises. It is not called for processes that started before
    `since`.
    """
    import psutil  # noqa: PLC0415 - the watchdog seldom needs it

    def find() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.create_time() < since - START_SLACK_S:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE and is_ours(process):
                    found.append(process)
        return found

    def for_each(processes: Iterable[psutil.Process], action: Callable[[psutil.Process], None]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                action(process)

    ours = find()
    if ours:
        for_each(ours, lambda process: process.terminate())
        _wait_until_exited(ours, grace_s)
        ours = find()
    for _ in range(MAX_KILL_ROUNDS):
        if not ours:
            break
        for_each(ours, lambda process: process.kill())
        _wait_until_exited(ours, grace_s)
        ours = find()
    return ours


def _wait_until_exited(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until none of them runs. They are not reaped: their parent may still read the exit code."""
    import psutil  # noqa: PLC0415 - the watchdog seldom needs it

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = False
        for process in processes:
            with contextlib.suppress(psutil.Error):
                alive = alive or (process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        if not alive:
            return
        time.sleep(0.02)


# --- orphans ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def adopt_orphans(is_known: Callable[[psutil.Process], bool]) -> Iterator[Callable[[], None]]:
    """Adopt orphaned descendants (Linux) and terminate them at the end.

    That includes those that left their session and discarded their environment. A descendant whose parent exits becomes
    a child of this process. Other systems adopt nothing. Yield a function that terminates the orphans earlier.
    `is_known` returns whether a child is not an orphan; it may raise what psutil raises.
    """
    import psutil  # noqa: PLC0415 - as above

    before = _set_subreaper(1)
    if before is None:
        yield lambda: None
        return
    children = {child.pid for child in psutil.Process().children()}
    since = time.time()
    is_over = False

    def terminate() -> None:
        if not is_over:
            _find_and_terminate_orphans(children, is_known, since)

    try:
        yield terminate
    finally:
        terminate()
        is_over = True
        _set_subreaper(before)


def _find_and_terminate_orphans(children: set[int], is_known: Callable[[psutil.Process], bool], since: float) -> None:
    import psutil  # noqa: PLC0415 - as above

    own = psutil.Process()

    def is_orphan(process: psutil.Process) -> bool:
        ancestry = [process, *process.parents()]
        pids = [ancestor.pid for ancestor in ancestry]
        if own.pid not in pids[1:]:
            return False
        adopted = ancestry[pids.index(own.pid) - 1]
        return adopted.pid not in children and not is_known(adopted)

    terminate_processes(is_orphan, since, GRACE_S)
    with contextlib.suppress(psutil.Error, OSError):
        for child in own.children():
            # One by one: waiting for any child would take the exit codes of other children.
            if child.pid not in children and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _set_subreaper(wanted: int) -> int | None:
    """Set whether orphaned descendants become children of this process.

    Return the previous setting; None if it is unknown or cannot be set.
    """
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
            start_new_session=True,  # a signal to this process group must not reach it
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"mark": mark, "since": since}).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        return None
    return process


def run_watchdog() -> None:
    """Run the watchdog: if its input ends without "done", terminate what still runs and remove the folders."""
    mark, since = "", 0.0
    folders: set[str] = set()
    for line in sys.stdin:
        message = json.loads(line)
        mark, since = message.get("mark", mark), message.get("since", since)
        if "folder" in message:
            folders.add(message["folder"])
        folders.discard(message.get("removed", ""))
        if message.get("done"):
            return
    if mark:
        terminate_marked(mark, since)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


# --- stale folders of killed processes --------------------------------------------------------------------------------


def remove_stale_folders(parent: Path | None = None) -> list[Path]:
    """Remove scratch folders of this user whose owner has exited: the kernel released their lock.

    Return the removed folders.
    """
    removed = []
    parent = parent if parent is not None else Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for folder in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):
                if _is_stale(folder):
                    shutil.rmtree(folder, ignore_errors=True)  # does not follow links
                    removed.append(folder)
    return removed


def _is_stale(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    try:
        handle = open_handle(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - status.st_mtime > MAX_UNLOCKED_AGE_S
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
