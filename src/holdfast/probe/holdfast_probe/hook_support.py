"""Checks whether torch still calls optimizer hooks: before 2.3 it drops them at the first torch.compile."""


def hooked_classes(optimizer_class):
    """Return the optimizer classes that have had an instance: torch marks their `step`."""
    found, kinds = [], [optimizer_class]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if getattr(kind.__dict__.get("step"), "hooked", False):
            found.append(kind)
    return found


def calls_hooks(optimizer_class, kind):
    """Return True if `step` still goes through torch's wrapper that calls the hooks, or if this is unknown."""
    wrap = getattr(optimizer_class, "profile_hook_step", None)
    wrapper_codes = getattr(getattr(wrap, "__code__", None), "co_consts", None)
    if wrapper_codes is None:
        return True
    step = kind.__dict__.get("step")
    while step is not None:
        if getattr(step, "__code__", None) in wrapper_codes:
            return True
        step = getattr(step, "__wrapped__", None)
    return False
