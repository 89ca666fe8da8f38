"""The trainer's loop while it runs: its local variables and its progress bar."""

import ctypes
import sys

LOOP = "_do_train"


def find_frame(name):
    """Return the frame of the calling function with this name; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


def set_local(frame, name, value):
    """Set a local variable of a running function. Python 3.13 writes through automatically."""
    local_values = frame.f_locals
    local_values[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def advance_bar(done):
    """Advance the progress bar to the start position in the epoch."""
    frame = find_frame("__iter__")
    bar = None if frame is None else frame.f_locals.get("self")
    if bar is not None and hasattr(bar, "n") and hasattr(bar, "last_print_n"):
        bar.n = bar.last_print_n = done
