"""Isolation of one case: the real command line in a forked process, with a memory limit, a timeout and an audit hook.

The parent has already imported everything, so that a case takes milliseconds. A pipe returns the violations that the hook
observed and how the command exited. The output is in two files.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_BYTES = 500 << 20
"""In addition to what the interpreter has mapped before the case starts."""
LIMIT_S = 5.0
RETRY_S = 20.0
"""Time limit for a second try of a case that took too long: the machine may have been busy."""
FILE_BYTES = 64 << 20
"""No case may write a larger file."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS = ("/dev/null", "/dev/tty", "/dev/ptmx", "/dev/pts/", "/dev/shm/holdfast-", "/proc/self/")
PATH_EVENTS = {
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime",
    "shutil.rmtree", "shutil.move", "os.mkfifo", "os.setxattr",
}  # fmt: skip
PROGRAM_EVENTS = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "subprocess.Popen"}
NETWORK_EVENTS = {"socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request"}


@dataclass
class Outcome:
    status: int | None = None
    error: str = ""
    """The type of an uncaught exception."""
    place: str = ""
    """The last line of Holdfast's code in the traceback, or where it hung."""
    trace: str = ""
    violations: list[str] = field(default_factory=list)
    peak_mb: int = 0
    seconds: float = 0.0
    hung: bool = False
    killed_by: int | None = None


class AuditHook:
    """An audit hook that records forbidden actions of a case."""

    def __init__(self, place: Path, outside: Path, *, may_start_programs: bool, may_unpickle: bool) -> None:
        self.violations: list[str] = []
        self._inside = str(place) + "/"
        self._outside = str(outside) + "/"
        self._forbidden = {
            *NETWORK_EVENTS,
            *(() if may_start_programs else PROGRAM_EVENTS),
            *(() if may_unpickle else ("pickle.find_class",)),
        }
        self._me = os.getpid()
        self._busy = False
        self.on = True

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.on or self._busy or os.getpid() != self._me:
            return
        self._busy = True  # ignore the hook's own actions
        try:
            self._check(event, given)
        except PermissionError:
            raise  # prevents an action that would affect an unrelated process
        except Exception:  # noqa: BLE001 - a hook that raises would change the behavior of the case
            pass
        finally:
            self._busy = False

    def _check(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            self._check_open(*given)
        elif event in ("exec", "import"):
            name = getattr(given[0], "co_filename", "") if event == "exec" else given[1]
            if isinstance(name, str) and name.startswith((self._inside, self._outside)):
                self._note(f"{'runs code of' if event == 'exec' else 'imports'} {name}")
        elif event in PATH_EVENTS:
            self._check_paths(event, given[:2])
        elif event in ("os.kill", "os.killpg"):
            if given[1] != 0 and not self._is_own(given[0]):
                self._note(f"{event} of an unrelated process with signal {given[1]}")
                raise PermissionError(errno.EPERM, "the bench does not allow signals to unrelated processes")
        elif event in self._forbidden:
            self._note(f"{'unpickles' if event == 'pickle.find_class' else event} {str(given[:2])[:200]}")

    def _check_open(self, path: Any, _mode: Any, flags: int) -> None:
        # A folder is only opened to create a file without a name in it: Holdfast tests so whether it is writable.
        if not isinstance(path, (str, bytes)) or not flags & WRITES or Path(os.fsdecode(path)).is_dir():
            return
        if not self._is_inside(path, follow=not flags & os.O_NOFOLLOW):
            self._note(f"writes {os.fsdecode(path)!r}")

    def _check_paths(self, event: str, paths: tuple[Any, ...]) -> None:
        for path in paths if event != "os.symlink" else paths[1:]:
            if isinstance(path, (str, bytes, os.PathLike)) and not self._is_inside(path, follow=False):
                self._note(f"{event} {os.fsdecode(path)!r}")

    def _is_inside(self, path: Any, *, follow: bool = True) -> bool:
        """Return whether a file is inside the folder of the case. Without `follow`, the location of a link itself counts."""
        place = Path(os.fsdecode(path))
        text = os.path.realpath(place) if follow else f"{os.path.realpath(place.parent)}/{place.name}"
        return (text + "/").startswith(self._inside) or text.startswith(HARMLESS)

    def _is_own(self, pid: int) -> bool:
        """Return whether a process belongs to this case or is gone. A pid below 2 means a group, or every process."""
        if pid < 2:
            return False
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            return pid == self._me or any(parent.pid == self._me for parent in process.parents())
        return True

    def _note(self, violation: str) -> None:
        if len(self.violations) < 20:
            self.violations.append(violation)


def run_isolated(
    work: Callable[[], None], *, folder: Path, place: Path, outside: Path, stdin: Path | None = None, programs: bool, unpickle: bool, limit_s: float = LIMIT_S,
) -> Outcome:  # fmt: skip
    """Run `work` in a forked process in `folder`. It must not write outside `place`, and must not touch `outside`."""
    reader, writer = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        os.close(reader)
        try:
            _run_in_fork(work, folder, place, outside, stdin, programs, unpickle, limit_s, writer)
        finally:
            os._exit(77)
    os.close(writer)
    outcome = Outcome()
    status = _wait(pid, limit_s)
    outcome.seconds = time.monotonic() - began
    if status is None:
        outcome.hung = True
        outcome.place = _find_hang(place / "hang.txt")
        _kill_all(pid)
    elif os.WIFSIGNALED(status):
        outcome.killed_by = os.WTERMSIG(status)
    else:
        outcome.status = os.WEXITSTATUS(status)
    with os.fdopen(reader, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        text = pipe.read() or b""
    if text:
        for name, value in json.loads(text).items():
            setattr(outcome, name, value)
    return outcome


def _wait(pid: int, seconds: float) -> int | None:
    descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    deadline = time.monotonic() + seconds
    if descriptor is not None:
        select.select([descriptor], [], [], seconds)
        os.close(descriptor)
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)


def _kill_all(pid: int) -> None:
    """Kill the case and all processes that it started."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                one.kill()
    os.waitpid(pid, 0)


def _run_in_fork(
    work: Callable[[], None], folder: Path, place: Path, outside: Path, stdin: Path | None, programs: bool, unpickle: bool, limit_s: float, writer: int
) -> None:  # fmt: skip
    os.setsid()
    outcome = {"status": 0, "error": "", "place": "", "trace": "", "violations": []}
    for number, path in ((1, place / "stdout"), (2, place / "stderr")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(stdin or os.devnull, os.O_RDONLY | os.O_NONBLOCK), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        open(n, "w", buffering=1, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        for n in (1, 2)
    )
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    os.chdir(folder)
    faulthandler.dump_traceback_later(max(1.0, limit_s - 0.3), file=open(place / "hang.txt", "w"))  # noqa: SIM115, PTH123
    limit_memory()
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = AuditHook(place, outside, may_start_programs=programs, may_unpickle=unpickle)
    sys.addaudithook(hook)
    try:
        work()
    except SystemExit as error:
        outcome["status"] = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:  # noqa: BLE001 - uncaught exceptions are what the bench looks for
        hook.on = False
        outcome["status"] = 1
        outcome["error"] = type(error).__name__
        outcome["place"] = find_place(error)
        outcome["trace"] = "".join(
            traceback.format_exception(type(error), error, error.__traceback__, limit=-12, chain=False)
        )[-3000:]
    hook.on = False
    outcome["violations"] = hook.violations
    outcome["peak_mb"] = peak_bytes() >> 20
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(writer, json.dumps(outcome).encode()[:60_000])
    os._exit(int(outcome["status"]) & 255)  # type: ignore[call-overload]


def limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak


def peak_bytes() -> int:
    """Return the peak memory of this process since `limit_memory`, or of its children, whichever is larger."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        own = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
        return max(own, children)
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, children)


def find_place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/holdfast/" in frame.filename.replace("holdfast_probe", "holdfast/")]
    frame = own[-1] if own else frames[-1] if frames else None
    if frame is None:
        return "?"
    return f"{frame.filename.rpartition('/holdfast/')[2] or frame.filename}:{frame.lineno} {frame.name}"


def _find_hang(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in path.read_text().splitlines() if "/holdfast/" in line]
        if lines:
            return lines[0].rpartition("/holdfast/")[2].replace('", line ', ":")
    return "?"
