"""Starts the probe, then runs the sitecustomize that would have run without it.

Python imports the first `sitecustomize` on its path at start-up. If the probe fails, the training must still start as
usual. If the other sitecustomize fails, its error must surface as usual.
"""

import os
import sys

_OWN_DIR = os.path.dirname(os.path.abspath(__file__))


def _start_probe():
    if sys.version_info < (3, 9) or sys.implementation.name != "cpython" or not os.environ.get("HOLDFAST_ATTEMPT_DIR"):
        return
    try:
        from holdfast_probe import bootstrap

        bootstrap.start()
    except Exception:
        pass


def _remove_from_path():
    """Restore `sys.path` to what it would be without the probe. Child processes find the probe through PYTHONPATH."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _OWN_DIR]


def _run_other_sitecustomize():
    try:
        from importlib.machinery import PathFinder
    except ImportError:  # Python 2.7, used by a tool that the training starts
        _run_other_sitecustomize_with_imp()
        return
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # more expensive than everything above, and rarely needed

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _run_other_sitecustomize_with_imp():
    import imp

    try:
        file, path, description = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    own = sys.modules.pop("sitecustomize", None)  # otherwise imp would run the other one inside this module's namespace
    try:
        imp.load_module("sitecustomize", file, path, description)
    finally:
        if file is not None:
            file.close()
        sys.modules.setdefault("sitecustomize", own)


_start_probe()
_remove_from_path()
_run_other_sitecustomize()
