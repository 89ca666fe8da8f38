"""What torch offers for each type of device: its memory, its cache and its random state.

The functions are found by their names in the module of the type, such as `torch.cuda`. A new type of device needs a change
here only if its functions have unusual names, or to save its random state: then it is added to `WITH_RNG`.
"""

HOST = frozenset(["cpu", "meta"])
"""Types of tensors that are not on an accelerator."""
WITH_RNG = ("cuda", "mps")
"""Types of devices whose random state is saved."""
_STATISTICS = (
    ("allocated", "memory_allocated"),
    ("reserved", "memory_reserved"),
    ("peak", "max_memory_allocated"),
)
_STATISTICS_OF_ALL = (("allocated", "current_allocated_memory"), ("driver", "driver_allocated_memory"))
"""Functions without an argument: they are about all devices of the type (MPS)."""


def is_accelerator(device):
    return device.type not in HOST


def read_memory(torch, device):
    """Return the bytes that the device's allocator reports, by the names of the fields of an event."""
    if not is_accelerator(device):
        return {}
    module = getattr(torch, device.type, None)
    of_all = {field: getattr(module, name)() for field, name in _STATISTICS_OF_ALL if hasattr(module, name)}
    return of_all or {field: getattr(module, name)(device) for field, name in _STATISTICS if hasattr(module, name)}


def read_memory_limit(torch, device):
    """Return the device's total memory, or 0 if it is unknown."""
    module = getattr(torch, device.type, None)
    try:
        if hasattr(module, "recommended_max_memory"):
            return int(module.recommended_max_memory())
        return int(module.mem_get_info(device)[1])
    except Exception:
        return 0


def empty_cache(torch, device):
    """Return the device's cached free memory to the system. Return whether that is possible."""
    function = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if function is not None:
        function()
    return function is not None


def get_rng_states(torch):
    """Return the random state of each type of device that is in use."""
    states = {}
    for kind in WITH_RNG:
        module = _find_module(torch, kind)
        if module is None or not getattr(module, "is_initialized", lambda: True)():
            continue
        if hasattr(module, "get_rng_state_all"):
            states[kind] = module.get_rng_state_all()
        else:
            states[kind] = module.get_rng_state()
    return states


def set_rng_states(torch, states):
    """Restore the states of the devices that exist here."""
    for kind in WITH_RNG:
        module = _find_module(torch, kind) if kind in states else None
        if module is None:
            continue
        # Clone: torch reads a state from the start of the storage, and a view crashes.
        if not hasattr(module, "set_rng_state_all"):
            module.set_rng_state(states[kind].clone())
        elif module.device_count() == len(states[kind]):
            module.set_rng_state_all([state.clone() for state in states[kind]])


def _find_module(torch, kind):
    """Return the module of a type of device; None if there is no such device."""
    module = getattr(torch, kind, None)
    # Older versions have torch.mps, but no torch.mps.is_available.
    source = module if hasattr(module, "is_available") else getattr(torch.backends, kind, None)
    return module if module is not None and source is not None and source.is_available() else None
