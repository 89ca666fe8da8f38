"""Keeps the user's files unchanged: existing files outside the scratch folder are not written, removed or renamed.

A Python audit hook sees each such operation before it happens and refuses it with a PermissionError if it would change a
file of the user's. A new file outside the scratch folder is reported, or also refused if the process is confined to some
folders. The hook does not see what a library or another program does without Python. On Linux the process is confined;
elsewhere the supervisor compares the folder before and after, and programs and databases are reported. `torch.save` writes
without Python too, and is skipped silently.
"""

import errno
import functools
import os
import stat
import sys
import threading

from ..event_writer import encode_event

MAX_LINES = 200
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
REFUSED = "this is a dry run by holdfast check: files outside its folder must not change"
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
EXTERNAL_WRITERS = {
    "subprocess.Popen": 0,
    "os.system": 0,
    "os.exec": 0,
    "os.posix_spawn": 0,
    "os.spawn": 1,
    "sqlite3.connect": 0,
}
"""Audit events of programs and libraries that write without Python -> the index of the argument with their name."""
PATH_EVENTS = {
    "os.chown": (0,), "os.setxattr": (0,), "os.removexattr": (0,), "os.chflags": (0,),
    "os.truncate": (0,), "os.chmod": (0,), "os.utime": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,),
    "shutil.rmtree": (0,), "os.link": (1,), "os.symlink": (1,),
}  # fmt: skip
"""Audit events -> the indices of the arguments that are paths to be changed."""
NAME_EVENTS = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.link", "os.symlink")
"""They change a name in a folder. For a symbolic link, they change the link itself and not its target."""

_guards = []  # type: ignore[var-annotated]


def install(log, scratch, caches=None, writable=None):
    """`writable` has the folders that this process is confined to, or None if it is not confined. `caches` has the tool
    caches among them.
    """
    if not _guards:
        _guards.append(WriteGuard(log, scratch, caches, writable))
        sys.addaudithook(_guards[0])
        _report_uncaught_errors(_guards[0])


def _report_uncaught_errors(guard):
    """Report an uncaught exception caused by a refusal: a library may have hit one without Python."""
    original = sys.excepthook

    @functools.wraps(original)
    def excepthook(kind, error, trace):
        guard.report_error(error)
        return original(kind, error, trace)

    sys.excepthook = excepthook


def guard_torch_save(torch):
    """Guard torch.save, which writes without Python. An existing file is not changed, and the training continues as if it were
    saved.
    """
    if not _guards:
        return
    guard, original = _guards[0], torch.save

    @functools.wraps(original)
    def save(obj, f, *args, **kwargs):
        if isinstance(f, (str, bytes, os.PathLike)) and not guard.may_write(f, "torch.save"):
            return None
        return original(obj, f, *args, **kwargs)

    torch.save = save


class WriteGuard(object):
    def __init__(self, log, scratch, caches=None, writable=None):
        self._log = log
        self._scratch = tuple(os.path.realpath(folder) for folder in scratch)
        self._caches = None if caches is None else tuple(os.path.realpath(folder) for folder in caches)
        self._writable = None if writable is None else tuple(os.path.realpath(folder) for folder in writable)
        home = os.path.realpath(os.path.expanduser("~"))
        self._home = home if home != os.sep else None
        self._created = set()
        self._reported = set()
        self._local = threading.local()

    def __call__(self, event, args):
        if event == "open":
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & WRITE_FLAGS
            if writes and not self.may_write(path, "open"):
                raise PermissionError(errno.EACCES, REFUSED, path)
        elif event in PATH_EVENTS:
            if event in NAME_EVENTS and any(type(argument) is int and argument >= 0 for argument in args[1:]):
                return  # inside an open folder: part of a removal that was checked when it began
            for index in PATH_EVENTS[event]:
                if not self.may_write(args[index], event):
                    raise PermissionError(errno.EACCES, REFUSED, args[index])
        elif event in EXTERNAL_WRITERS and self._writable is None:
            self._try_report("beyond", args[EXTERNAL_WRITERS[event]], event)

    def may_write(self, path, how):
        """Return whether a path may be written, and record new files. Never raises."""
        if getattr(self._local, "busy", False) or not isinstance(path, (str, bytes, os.PathLike)):
            return True
        self._local.busy = True
        try:
            path = os.path.abspath(os.fsdecode(path))
            if how in NAME_EVENTS:
                return self._is_allowed(
                    os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), how
                )
            return self._is_allowed(os.path.realpath(path), how)
        except Exception:
            return True
        finally:
            self._local.busy = False

    def _is_allowed(self, path, how):
        if self._is_always_allowed(path):
            return True
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            if self._writable is not None and not _is_inside(path, self._writable):
                self._report("refused", path, how)
                return False
            self._created.add(path)
            self._report("made", path, how)
            return True
        if path in self._created or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return True  # a terminal, a pipe, a socket
        if how == "open" and stat.S_ISDIR(mode):
            return True
        self._report("refused", path, how)
        return False

    def _is_always_allowed(self, path):
        """Return True for the scratch folder, system paths, and tool caches in hidden folders of the home directory."""
        if path.startswith(("/dev/", "/proc/", "/sys/")) or "__pycache__" in path or path.endswith(".pyc"):
            return True
        if _is_inside(path, self._scratch):
            return True
        if self._caches is not None:
            return _is_inside(path, self._caches)
        return self._home is not None and path.startswith(self._home + os.sep + ".")

    def report_error(self, error):
        """Report a refused write that caused this error. Never raises. An error of a pipe or a socket has no file."""
        while error is not None and getattr(error, "errno", None) not in DENIED:
            error = error.__cause__ or error.__context__
        if error is not None:
            path = getattr(error, "filename", None)
            self._try_report("denied", "a file without a name" if path is None else path, type(error).__name__)

    def _try_report(self, what, path, how):
        if getattr(self._local, "busy", False):
            return
        self._local.busy = True
        try:
            if isinstance(path, (list, tuple)):
                path = path[0] if path else ""
            text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else repr(path)
            self._report(what, text[:300], how)
        except Exception:
            pass
        finally:
            self._local.busy = False

    def _report(self, what, path, how):
        if (what, path) in self._reported or len(self._reported) >= MAX_LINES:
            return
        self._reported.add((what, path))
        line = encode_event("file", {"what": what, "path": path, "how": how})
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._log, flags, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _is_inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
