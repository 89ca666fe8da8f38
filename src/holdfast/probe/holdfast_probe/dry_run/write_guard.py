"""The user's files stay as they are: what exists outside of the scratch is not written to, removed or renamed.

Python tells of each of these before it is done (an audit hook), and what would change something of the user's is refused, as
a disk without permission would. What is made anew outside is told of, or refused too where the process is confined to some
folders. What a library or another program does without Python is not seen here: on Linux the process is confined, elsewhere the
supervisor looks at the folder before and after, and programs and databases are told of. `torch.save` is one of these, and is left
out quietly.
"""

import errno
import functools
import os
import stat
import sys
import threading

from ..event_writer import encode_event

MAX_LINES = 200
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
REFUSED = "this is a dry run by holdfast check: files outside of its folder stay as they are"
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
BEYOND = {"subprocess.Popen": 0, "os.system": 0, "os.exec": 0, "os.posix_spawn": 0, "os.spawn": 1, "sqlite3.connect": 0}
"""Audit events of what writes without Python -> which of their arguments names it."""
CHANGING = {
    "os.chown": (0,), "os.setxattr": (0,), "os.removexattr": (0,), "os.chflags": (0,),
    "os.truncate": (0,), "os.chmod": (0,), "os.utime": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,),
    "shutil.rmtree": (0,), "os.link": (1,), "os.symlink": (1,),
}  # fmt: skip
"""Audit events -> which of their arguments are paths that change."""
OF_THE_NAME = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.link", "os.symlink")
"""They change a name in a folder: of a link, the link itself and not what it leads to."""

_keeper = []  # type: ignore[var-annotated]


def install(log, scratch, caches=None, writable=None):
    """`writable`: the folders that this process is confined to; None where it is not. `caches`: those of tools among them."""
    if not _keeper:
        _keeper.append(WriteGuard(log, scratch, caches, writable))
        sys.addaudithook(_keeper[0])
        _tell_of_the_end(_keeper[0])


def _tell_of_the_end(keeper):
    """An exception that nobody catches and that speaks of a refusal: one that a library came upon without Python."""
    original = sys.excepthook

    @functools.wraps(original)
    def excepthook(kind, error, trace):
        keeper.ended_by(error)
        return original(kind, error, trace)

    sys.excepthook = excepthook


def keep_from_torch(torch):
    """What torch writes it writes without Python: a file that exists is left as it is, and the training goes on as if it were saved."""
    if not _keeper:
        return
    keeper, original = _keeper[0], torch.save

    @functools.wraps(original)
    def save(obj, f, *args, **kwargs):
        if isinstance(f, (str, bytes, os.PathLike)) and not keeper.may_write(f, "torch.save"):
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
        self._made = set()
        self._told = set()
        self._here = threading.local()

    def __call__(self, event, args):
        if event == "open":
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & OPENED_TO_WRITE
            if writes and not self.may_write(path, "open"):
                raise PermissionError(errno.EACCES, REFUSED, path)
        elif event in CHANGING:
            if event in OF_THE_NAME and any(type(given) is int and given >= 0 for given in args[1:]):
                return  # inside an open folder: part of a removal that was looked at when it began
            for place in CHANGING[event]:
                if not self.may_write(args[place], event):
                    raise PermissionError(errno.EACCES, REFUSED, args[place])
        elif event in BEYOND and self._writable is None:
            self._tell_quietly("beyond", args[BEYOND[event]], event)

    def may_write(self, path, how):
        """Notes what is made anew. Never raises."""
        if getattr(self._here, "busy", False) or not isinstance(path, (str, bytes, os.PathLike)):
            return True
        self._here.busy = True
        try:
            path = os.path.abspath(os.fsdecode(path))
            if how in OF_THE_NAME:
                return self._judged(os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), how)
            return self._judged(os.path.realpath(path), how)
        except Exception:
            return True
        finally:
            self._here.busy = False

    def _judged(self, path, how):
        if self._is_free(path):
            return True
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            if self._writable is not None and not _is_beneath(path, self._writable):
                self._tell("refused", path, how)
                return False
            self._made.add(path)
            self._tell("made", path, how)
            return True
        if path in self._made or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return True  # a terminal, a pipe, a socket
        if how == "open" and stat.S_ISDIR(mode):
            return True
        self._tell("refused", path, how)
        return False

    def _is_free(self, path):
        """The scratch, the system's own places, and what tools keep in hidden folders of the home: caches, not work."""
        if path.startswith(("/dev/", "/proc/", "/sys/")) or "__pycache__" in path or path.endswith(".pyc"):
            return True
        if _is_beneath(path, self._scratch):
            return True
        if self._caches is not None:
            return _is_beneath(path, self._caches)
        return self._home is not None and path.startswith(self._home + os.sep + ".")

    def ended_by(self, error):
        """Never raises. What a pipe or a socket refused has no file."""
        while error is not None and getattr(error, "errno", None) not in DENIED:
            error = error.__cause__ or error.__context__
        if error is not None:
            path = getattr(error, "filename", None)
            self._tell_quietly("denied", "a file that it did not name" if path is None else path, type(error).__name__)

    def _tell_quietly(self, what, path, how):
        if getattr(self._here, "busy", False):
            return
        self._here.busy = True
        try:
            if isinstance(path, (list, tuple)):
                path = path[0] if path else ""
            text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else repr(path)
            self._tell(what, text[:300], how)
        except Exception:
            pass
        finally:
            self._here.busy = False

    def _tell(self, what, path, how):
        if (what, path) in self._told or len(self._told) >= MAX_LINES:
            return
        self._told.add((what, path))
        line = encode_event("file", {"what": what, "path": path, "how": how})
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._log, flags, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _is_beneath(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
