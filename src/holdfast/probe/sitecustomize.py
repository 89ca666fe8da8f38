"""Wakes the probe, then runs the sitecustomize that would have run without it.

Python imports the first `sitecustomize` on its path at start-up. Whatever goes wrong with the probe, the training must start
as it would have; whatever goes wrong in the other sitecustomize must show as it would have.
"""

import os
import sys

_OURS = os.path.dirname(os.path.abspath(__file__))


def _wake():
    if sys.version_info < (3, 9) or sys.implementation.name != "cpython" or not os.environ.get("HOLDFAST_ATTEMPT_DIR"):
        return
    try:
        from holdfast_probe import bootstrap

        bootstrap.wake()
    except Exception:
        pass


def _leave_path():
    """The path becomes what it would be without us; children find us through PYTHONPATH."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _OURS]


def _run_the_other():
    try:
        from importlib.machinery import PathFinder
    except ImportError:  # Python 2.7, of a tool that the training starts
        _run_the_other_with_imp()
        return
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # dearer than all of the above, and seldom needed

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _run_the_other_with_imp():
    import imp

    try:
        file, path, description = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    ours = sys.modules.pop("sitecustomize", None)  # or the other one would be run in our place, with our names
    try:
        imp.load_module("sitecustomize", file, path, description)
    finally:
        if file is not None:
            file.close()
        sys.modules.setdefault("sitecustomize", ours)


_wake()
_leave_path()
_run_the_other()
