"""Stack dumps on request: an unused signal makes faulthandler write the stack of every thread."""

import faulthandler
import os
import signal

from . import protocol

_file = None


def register(attempt_dir, pid):
    """Register the handler. Return (signal number, path) of the dump, or (None, None) if no signal is free. SIGURG is
    tried first: by default it is ignored, so a stray one does no harm. A signal that already has a handler is in use
    and is left alone. So there is nothing to chain to, and without chaining the handler restarts the system calls that
    it interrupts.
    """
    global _file
    for name in ("SIGURG", "SIGUSR2"):
        number = getattr(signal, name, None)
        if number is None or signal.getsignal(number) is not signal.SIG_DFL:
            continue
        path = os.path.join(attempt_dir, protocol.stack_file(pid))
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            # faulthandler writes to it until the process exits
            file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
            faulthandler.register(number, file=file, all_threads=True, chain=False)
        except (OSError, ValueError, RuntimeError, AttributeError):
            continue
        _file = file
        return int(number), path
    return None, None


def unregister(number):
    """Unregister after a fork: the child must not write to its parent's file."""
    global _file
    if number is not None:
        faulthandler.unregister(number)
    if _file is not None:
        _file.close()
        _file = None
