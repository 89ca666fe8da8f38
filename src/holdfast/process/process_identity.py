"""Which process is meant. A pid alone does not say: it comes again after a reboot, in another container, or once the numbers wrap.

A process belongs to an attempt only where that is proven, by one of two marks:

- its environment names the attempt's folder (`HOLDFAST_ATTEMPT_DIR`), which whatever a training starts inherits; or
- its pid, its start time, and the boot and PID namespace that both hold in are those which the journal recorded, and nothing speaks
  against it: it is a process of this user, leads a session, as every training that we start does, and has no environment any more. A
  program that writes a title over its environment (setproctitle) has only this. An environment that is whole and does not
  name the attempt's folder says that the process is another's, whatever the journal says: journals can be forged.

Whatever is below a proven process, or in a session that a proven process leads, belongs to it too. Nothing else is signalled.
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
MAX_ENVIRONMENT = 16 << 20


class ProcessIdentity(NamedTuple):
    """What the journal recorded of a process."""

    pid: int
    start: str
    """When it started, in the system's own unit; empty where that was not known."""
    pid_space: str
    """The boot and the PID namespace that pid and start hold in; empty where that was not known."""

    def is_of(self, process: psutil.Process) -> bool:
        """Whether this very process was recorded."""
        known = bool(self.start and self.pid_space)
        return known and self == identity_of(process.pid)

    def is_elsewhere(self) -> bool:
        """Whether the pid was given by another boot or in another PID namespace: here it means somebody else."""
        here = pid_space()
        return bool(self.pid_space and here) and self.pid_space != here

    def is_in_another_namespace(self) -> bool:
        """Whether the pid was given since this boot in another PID namespace: what had it may run, and cannot be seen from here."""
        boot, slash, namespace = self.pid_space.partition("/")
        here_boot, _, here_namespace = pid_space().partition("/")
        return bool(slash and boot == here_boot) and namespace != here_namespace


def identity_of(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, _start_of(pid), pid_space())


def pid_space() -> str:
    """In what pids hold: they are given anew by each boot and in each PID namespace."""
    if sys.platform == "darwin":
        return _boot_session_of_mac()
    try:
        return f"{BOOT_ID.read_text().strip()}/{PID_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


def _boot_session_of_mac() -> str:
    """Not kern.boottime: that moves when the clock is set."""
    try:
        library, text, size = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        failed = library.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode(errors="replace")


def _start_of(pid: int) -> str:
    """On Linux in ticks since the boot, which no clock that is set can move."""
    try:
        if sys.platform.startswith("linux"):
            # The name, in parentheses, may hold anything; what follows it are numbers.
            return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        return f"{psutil.Process(pid).create_time():.6f}"
    except (OSError, ValueError, IndexError, psutil.Error):
        return ""


def carries_mark(process: psutil.Process, folders: Collection[Path]) -> bool:
    """Whether its environment names one of these attempts' folders."""
    try:
        named = process.environ().get(protocol.ATTEMPT_DIR)
    except (psutil.Error, OSError, ValueError):
        return False
    return bool(named) and any(_is_same_folder(process.pid, str(named), folder) for folder in folders)


def may_be_recorded(process: psutil.Process) -> bool:
    """Whether nothing about it speaks against being a training of ours that has lost the mark."""
    try:
        return (
            process.pid > 1
            and os.geteuid() in process.uids()[:2]
            and session_of(process.pid) == process.pid
            and _has_lost_its_environment(process)
        )
    except (psutil.Error, OSError, ValueError):
        return False


def _has_lost_its_environment(process: psutil.Process) -> bool:
    """Whether it is empty, or written over. One that cannot be read is not known to be lost. Raises what psutil and files raise."""
    if not sys.platform.startswith("linux"):
        return not process.environ()
    handle = os.open(PROC / str(process.pid) / "environ", os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_ENVIRONMENT)
    whole = data.endswith(b"\0") and all(b"=" in each for each in data[:-1].split(b"\0"))
    return len(data) < MAX_ENVIRONMENT and not whole


def _is_same_folder(pid: int, named: str, folder: Path) -> bool:
    """As the process sees the path: in another container the same path may be another folder."""
    own_root = PROC / str(pid) / "root"
    try:
        seen = own_root / named.lstrip("/") if own_root.is_dir() else Path(named)
        return os.path.samestat(seen.stat(), folder.stat())
    except (OSError, ValueError):
        return named == str(folder)


class AttemptProcesses:
    """The living processes of attempts whose supervisor is gone. This process and those above it are never among them."""

    def __init__(self, folders: Collection[Path], recorded: Collection[ProcessIdentity] = ()) -> None:
        self._folders = folders
        self._recorded = {identity.pid: identity for identity in recorded}

    def proves(self, process: psutil.Process) -> bool:
        """By its own marks."""
        return (self._is_recorded(process) and may_be_recorded(process)) or carries_mark(process, self._folders)

    def _is_recorded(self, process: psutil.Process) -> bool:
        recorded = self._recorded.get(process.pid)
        return recorded is not None and recorded.is_of(process)

    def find(self) -> list[psutil.Process]:
        living = _all_alive()
        found = {process.pid: process for process in living if self.proves(process)}
        leaders = {pid for pid in found if session_of(pid) == pid}
        found.update({process.pid: process for process in living if session_of(process.pid) in leaders})
        for process in list(found.values()):
            with contextlib.suppress(psutil.Error):
                found.update({below.pid: below for below in process.children(recursive=True) if is_alive(below)})
        own = own_line()
        return [process for pid, process in found.items() if pid not in own]

    def includes(self, pid: int) -> bool:
        """Whether the process that has this pid now is one of them, by itself or by one above it. To be shown, not to be acted on:
        here the journal's word is enough.
        """
        try:
            process = psutil.Process(pid)
            line = (process, *process.parents())
            return is_alive(process) and any(self._is_recorded(each) or self.proves(each) for each in line)
        except (psutil.Error, ValueError, OverflowError):
            return False


def _all_alive() -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)  # a fresh one: process_iter may give what had this pid before
            if is_alive(process):
                found.append(process)
    return found


def own_line() -> set[int]:
    """This process and those above it: a user may resume a run from a shell that the run started."""
    own = psutil.Process()
    line = {own.pid}
    with contextlib.suppress(psutil.Error):
        line.update(above.pid for above in own.parents())
    return line


def send_signal(process: psutil.Process, number: int) -> bool:
    """Send it to this very process, never to another one that has got its pid since. False where it is gone or not ours to signal."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # macOS, an old kernel, or forbidden here
        return _send_by_pid(process, number)
    try:
        # It still runs now, so that the handle, which is older than this look, is its own.
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
        process.send_signal(number)  # which looks at the start time first
    except (psutil.Error, OSError, ValueError):
        return False
    return True


def send_to(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        send_signal(process, number)


def is_alive(process: psutil.Process) -> bool:
    """Zombies have ended. What cannot be looked at, because no descriptor is free, has not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (OSError, OverflowError):
        return -1
