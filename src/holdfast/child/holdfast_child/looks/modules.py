"""Every module that lives, noted when it is made, copied or loaded: to look for them later is a walk over all objects."""

import functools
import weakref

PRUNE_AT = 4096

_noted = []  # type: ignore[var-annotated]
_prune_at = PRUNE_AT
_watched = False


def watch(torch):
    """From here on modules are noted. They all pass through one of these two methods of their base class, which
    torch.compile wraps for the same reason.
    """
    global _watched
    if not _watched:
        _watched = True
        for name in ("__init__", "__setstate__"):
            setattr(torch.nn.Module, name, _noting(getattr(torch.nn.Module, name)))


def _noting(original):
    @functools.wraps(original)
    def method(module, *args, **kwargs):
        original(module, *args, **kwargs)
        _note(module)

    return method


def _note(module):
    global _prune_at
    try:
        _noted.append(weakref.ref(module))
        if len(_noted) >= _prune_at:
            _noted[:] = [reference for reference in _noted if reference() is not None]
            _prune_at = 2 * max(len(_noted), PRUNE_AT)
    except Exception:
        pass  # a module that cannot be noted is one that is not looked at


def living():
    found = {id(module): module for module in (reference() for reference in list(_noted)) if module is not None}
    return list(found.values())
