"""The trainer's loop while it runs: its local variables, and its progress bar."""

import ctypes
import sys

LOOP = "_do_train"


def frame_of(name):
    """Of the function of that name that called us; None where none did."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


def set_local(frame, name, value):
    """A local variable of a function that is running. Python 3.13 writes through by itself."""
    known = frame.f_locals
    known[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def advance_bar(done):
    """The progress bar begins where the epoch does."""
    frame = frame_of("__iter__")
    bar = None if frame is None else frame.f_locals.get("self")
    if bar is not None and hasattr(bar, "n") and hasattr(bar, "last_print_n"):
        bar.n = bar.last_print_n = done
