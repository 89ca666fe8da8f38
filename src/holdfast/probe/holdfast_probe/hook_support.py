"""Whether torch still calls the hooks of optimizers: before 2.3 it drops them at the first torch.compile."""


def hooked_classes(optimizer_class):
    """Optimizer classes of which an instance was made: torch marks their `step`."""
    found, kinds = [], [optimizer_class]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if getattr(kind.__dict__.get("step"), "hooked", False):
            found.append(kind)
    return found


def calls_hooks(optimizer_class, kind):
    """Whether `step` still goes through torch's wrapper that calls the hooks; True where that cannot be told."""
    wrap = getattr(optimizer_class, "profile_hook_step", None)
    made_by_wrap = getattr(getattr(wrap, "__code__", None), "co_consts", None)
    if made_by_wrap is None:
        return True
    step = kind.__dict__.get("step")
    while step is not None:
        if getattr(step, "__code__", None) in made_by_wrap:
            return True
        step = getattr(step, "__wrapped__", None)
    return False
