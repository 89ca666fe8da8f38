"""Stacks on request: a signal that nobody uses makes faulthandler write what every thread is doing."""

import faulthandler
import os
import signal

from . import protocol

_file = None


def register(attempt_dir, pid):
    """(signal number, path) of the dump, or (None, None) where no signal is free.

    SIGURG first: its default is to be ignored, so that a stray one does no harm. A signal that is not at its default is
    somebody's, and is left alone; so there is nothing to chain to, and without chaining the handler restarts the system
    calls that it interrupts.
    """
    global _file
    for name in ("SIGURG", "SIGUSR2"):
        number = getattr(signal, name, None)
        if number is None or signal.getsignal(number) is not signal.SIG_DFL:
            continue
        path = os.path.join(attempt_dir, protocol.stack_file(pid))
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            # faulthandler writes into it for as long as the process lives
            file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
            faulthandler.register(number, file=file, all_threads=True, chain=False)
        except (OSError, ValueError, RuntimeError, AttributeError):
            continue
        _file = file
        return int(number), path
    return None, None


def unregister(number):
    """After a fork: the child must not write into its parent's file."""
    global _file
    if number is not None:
        faulthandler.unregister(number)
    if _file is not None:
        _file.close()
        _file = None
