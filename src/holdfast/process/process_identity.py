"""The identity of a process. A pid is not enough: it recurs after a reboot, in another container, or when pids wrap.

A process belongs to an attempt only if one of two things proves it:

- Its environment names the attempt's folder (`HOLDFAST_ATTEMPT_DIR`). Everything that a training starts inherits this.
- Its pid, start time, boot and PID namespace are those that the journal recorded, and nothing contradicts it: it is a
  process of this user, leads a session, as every training that Holdfast starts does, and has lost its environment. A
  program that writes a title over its environment (setproctitle) has only this proof. An intact environment that does
  not name the attempt's folder shows that the process is unrelated, regardless of the journal: journals can be forged.

The descendants of a proven process, and the members of a session that it leads, belong to the attempt too. No other
process is signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from holdfast.probe.holdfast_probe import protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PROC = Path("/proc")
BOOT_ID = PROC / "sys/kernel/random/boot_id"
PID_NAMESPACE = PROC / "self/ns/pid"
MAX_ENVIRONMENT_BYTES = 16 << 20


class ProcessIdentity(NamedTuple):
    """The identity of a process, as recorded in the journal."""

    pid: int
    start: str
    """The start time in the unit of the system; empty if it was unknown."""
    pid_space: str
    """The boot and the PID namespace in which pid and start are valid; empty if unknown."""

    def matches(self, process: psutil.Process) -> bool:
        """Return whether this is the recorded process."""
        is_known = bool(self.start and self.pid_space)
        return is_known and self == read_identity(process.pid)

    def is_elsewhere(self) -> bool:
        """Return whether the pid is from another boot or PID namespace, so here it may be a different process."""
        here = pid_space()
        return bool(self.pid_space and here) and self.pid_space != here

    def is_in_another_namespace(self) -> bool:
        """Return whether the pid is from this boot but another PID namespace: it may run but is not visible here."""
        boot, slash, namespace = self.pid_space.partition("/")
        here_boot, _, here_namespace = pid_space().partition("/")
        return bool(slash and boot == here_boot) and namespace != here_namespace


def read_identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, _read_start(pid), pid_space())


def pid_space() -> str:
    """Return the boot and PID namespace in which pids are unique."""
    if sys.platform == "darwin":
        return _read_mac_boot_session()
    try:
        return f"{BOOT_ID.read_text().strip()}/{PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


def _read_mac_boot_session() -> str:
    """Return the boot session's UUID. kern.boottime is not suitable: it changes when the clock is set."""
    try:
        library, text, size = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        failed = library.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode(errors="replace")


def _read_start(pid: int) -> str:
    """Return the start time; on Linux in ticks since boot, which do not change when the clock is set."""
    try:
        if sys.platform.startswith("linux"):
            # The name in parentheses may contain anything; only numbers follow it.
            return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        return f"{psutil.Process(pid).create_time():.6f}"
    except (OSError, ValueError, IndexError, psutil.Error):
        return ""


def has_attempt_mark(process: psutil.Process, folders: Collection[Path]) -> bool:
    """Return whether its environment names one of these attempt folders."""
    try:
        path = process.environ().get(protocol.ATTEMPT_DIR)
    except (psutil.Error, OSError, ValueError):
        return False
    return bool(path) and any(_is_same_folder(process.pid, str(path), folder) for folder in folders)


def is_plausible_training(process: psutil.Process) -> bool:
    """Return whether nothing contradicts that it is a training of Holdfast that has lost its environment."""
    try:
        return (
            process.pid > 1
            and os.geteuid() in process.uids()[:2]
            and get_session(process.pid) == process.pid
            and _has_lost_environment(process)
        )
    except (psutil.Error, OSError, ValueError):
        return False


def _has_lost_environment(process: psutil.Process) -> bool:
    """Return whether its environment is empty or overwritten. An unreadable environment does not count as lost.

    Raises psutil.Error and OSError.
    """
    if not sys.platform.startswith("linux"):
        return not process.environ()
    handle = os.open(PROC / str(process.pid) / "environ", os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_ENVIRONMENT_BYTES)
    is_intact = data.endswith(b"\0") and all(b"=" in entry for entry in data[:-1].split(b"\0"))
    return len(data) < MAX_ENVIRONMENT_BYTES and not is_intact


def _is_same_folder(pid: int, path: str, folder: Path) -> bool:
    """Compare the folder with the path as the process resolves it: in another container the path may differ."""
    root = PROC / str(pid) / "root"
    try:
        resolved = root / path.lstrip("/") if root.is_dir() else Path(path)
        return os.path.samestat(resolved.stat(), folder.stat())
    except (OSError, ValueError):
        return path == str(folder)


class AttemptProcesses:
    """The running processes of attempts whose supervisor has exited. Never includes this process or its ancestors."""

    def __init__(self, folders: Collection[Path], recorded: Collection[ProcessIdentity] = ()) -> None:
        self._folders = folders
        self._recorded = {identity.pid: identity for identity in recorded}

    def is_proven(self, process: psutil.Process) -> bool:
        """Return whether the process itself proves that it belongs to an attempt."""
        return (self._is_recorded(process) and is_plausible_training(process)) or has_attempt_mark(
            process, self._folders
        )

    def _is_recorded(self, process: psutil.Process) -> bool:
        recorded = self._recorded.get(process.pid)
        return recorded is not None and recorded.matches(process)

    def find(self) -> list[psutil.Process]:
        alive = _list_alive()
        found = {process.pid: process for process in alive if self.is_proven(process)}
        leaders = {pid for pid in found if get_session(pid) == pid}
        found.update({process.pid: process for process in alive if get_session(process.pid) in leaders})
        for process in list(found.values()):
            with contextlib.suppress(psutil.Error):
                found.update({child.pid: child for child in process.children(recursive=True) if is_alive(child)})
        own = find_own_ancestry()
        return [process for pid, process in found.items() if pid not in own]

    def includes(self, pid: int) -> bool:
        """Return whether the process that has this pid now, or one of its ancestors, belongs to an attempt.

        For display only, never to act on it: here the journal's record is enough.
        """
        try:
            process = psutil.Process(pid)
            ancestry = (process, *process.parents())
            return is_alive(process) and any(self._is_recorded(one) or self.is_proven(one) for one in ancestry)
        except (psutil.Error, ValueError, OverflowError):
            return False


def _list_alive() -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)  # a new object: process_iter may return the process that had this pid before
            if is_alive(process):
                found.append(process)
    return found


def find_own_ancestry() -> set[int]:
    """Return the pids of this process and its ancestors: a user may resume a run from a shell that the run started."""
    own = psutil.Process()
    pids = {own.pid}
    with contextlib.suppress(psutil.Error):
        pids.update(parent.pid for parent in own.parents())
    return pids


def send_signal(process: psutil.Process, number: int) -> bool:
    """Send the signal to exactly this process, never to another one that reused its pid.

    Return False if it has exited or may not be signalled.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # macOS, an old kernel, or forbidden here
        return _send_by_pid(process, number)
    try:
        # The process still runs now, and the handle was opened before this check, so the handle refers to it.
        if not process.is_running():
            return False
        signal.pidfd_send_signal(handle, number)
    except (OSError, psutil.Error):
        return False
    finally:
        os.close(handle)
    return True


def _send_by_pid(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)  # psutil compares the start time first
    except (psutil.Error, OSError, ValueError):
        return False
    return True


def send_to(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        send_signal(process, number)


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process is alive.

    A zombie is not. A process that cannot be inspected, because no descriptor is free, counts as alive.
    """
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def get_session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (OSError, OverflowError):
        return -1
