"""Callbacks that run once a module has been imported, without importing it.

One finder stays at the front of `sys.meta_path` while callbacks are pending. It delegates to the other finders and
replaces `exec_module` on the loader that they return, for that one import only. The module keeps the loader that it
would have had.
"""

import sys

_waiting = {}  # type: ignore[var-annotated]
_before = {}  # type: ignore[var-annotated]
_finder = None


def after_import(name, function, before=None):
    """Call `before()` when the import of `name` begins and `function(module)` after it, or now. Ignore their errors."""
    global _finder
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _call(function, module)
        return
    _waiting.setdefault(name, []).append(function)
    if before is not None:
        _before.setdefault(name, []).append(before)
    if _finder is None:
        _finder = _Finder()
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _call(function, *args):
    try:
        function(*args)
    except Exception:
        pass


def _run_callbacks(name):
    functions = _waiting.pop(name, ())
    module = sys.modules.get(name)
    if module is not None:
        for function in functions:
            _call(function, module)
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder(object):
    def find_spec(self, name, path=None, target=None):
        if name not in _waiting:
            return None
        spec = _find_spec_elsewhere(self, name, path, target)
        if spec is not None and spec.loader is not None:
            _wrap_loader(spec.loader, name)
        return spec


def _find_spec_elsewhere(finder, name, path, target):
    for other in list(sys.meta_path):
        find_spec = None if other is finder else getattr(other, "find_spec", None)
        spec = None if find_spec is None else find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def _wrap_loader(loader, name):
    """Make the loader run the callbacks after its next `exec_module` (or `load_module`, if it has only that)."""
    method = "exec_module" if hasattr(loader, "exec_module") else "load_module"
    original = getattr(loader, method, None)
    if original is None:
        return

    def wrapper(*args, **kwargs):
        vars(loader).pop(method, None)
        for function in _before.pop(name, ()):
            _call(function)
        result = original(*args, **kwargs)
        _run_callbacks(name)
        return result

    # A loader that is a class, or has no instance attributes, cannot be wrapped: its import proceeds as usual.
    if isinstance(getattr(loader, "__dict__", None), dict):
        vars(loader)[method] = wrapper
