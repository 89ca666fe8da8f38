"""Loads saved state back into the objects of a training (stateful.py)."""

import sys
from collections import OrderedDict, defaultdict, deque
from itertools import chain


def to_module(torch, module, kept, tensors_of, in_its_own_way):
    """Load `kept` into a module. `tensors_of()` returns its current (parameters, other tensors, non-persistent buffers) by name. A module
    with custom state methods (`in_its_own_way`) may keep a reference to what it is given.
    """
    state, passing = kept["state"], kept.get("passing buffers", {})
    _make_buffers_fit(torch, module, {**state, **passing})
    state = OrderedDict(own(torch, dict(state)) if in_its_own_way else state)
    # The version metadata of the current modules: the state was saved by this program.
    state._metadata = getattr(module.state_dict(), "_metadata", None)
    module.load_state_dict(state)
    parameters, _, buffers = tensors_of()
    frozen = set(kept["frozen"])
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)
    set_gradients(torch, parameters, kept["gradients"])
    with torch.no_grad():
        for name, was in passing.items():
            if name in buffers:
                buffers[name].copy_(was)


def as_it_was(torch, kept):
    """Return a state dict for `load_state_dict` of anything that is not a module. The object may keep the tensors."""
    state = own(torch, kept["state"])
    if kept.get("columns") is not None:
        state = dict(state, state=_by_rows(own(torch, kept["columns"])))
    return state


def to_other(part, state):
    if state == {}:
        return  # from a disabled GradScaler: an enabled one raises on an empty state
    part.load_state_dict(state)


def to_optimizer(torch, optimizer, state, numbers):
    groups = optimizer.param_groups
    to_other(optimizer, state)
    _keep_groups(optimizer, groups)
    if numbers is not None and numbers == numbers_of(optimizer):
        _keep_types(torch, optimizer, state)


def numbers_of(optimizer):
    """Return the dtypes of its parameters."""
    return sorted({str(parameter.dtype) for group in optimizer.param_groups for parameter in group["params"]})


def set_values(torch, parameters, values, frozen):
    """Set the values of parameters that belong only to an optimizer."""
    with torch.no_grad():
        for name, was in values.items():
            if name in parameters:
                if parameters[name].shape != was.shape:
                    then, now = tuple(was.shape), tuple(parameters[name].shape)
                    raise ValueError("parameter %s has shape %s, but the snapshot has %s" % (name, now, then))
                parameters[name].copy_(was)
                parameters[name].requires_grad_(name not in frozen)


def set_gradients(torch, parameters, gradients):
    for parameter in parameters.values():
        parameter.grad = None
    for name, kept in gradients.items():
        parameter = parameters[name]
        gradient = _sparse(torch, **kept) if isinstance(kept, dict) else kept
        numbers = getattr(parameter, "grad_dtype", parameter.dtype) or gradient.dtype
        parameter.grad = gradient.to(parameter.device, numbers, copy=True)


def own(torch, value):
    """Return a copy in which each tensor has its own memory. All tensors of a snapshot share one block: keeping one would keep all of them
    alive, and torch reads a generator state from the start of the storage.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        made = defaultdict(value.default_factory) if isinstance(value, defaultdict) else type(value)()
        for key, item in value.items():
            made[key] = own(torch, item)
        return made
    if isinstance(value, deque):
        return deque((own(torch, item) for item in value), value.maxlen)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(own(torch, item) for item in value)
    return value.copy() if is_array(value) else value


def is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _make_buffers_fit(torch, module, kept):
    """Replace buffers that were created or resized during the training, and buffers with overlapping memory, which cannot be copied into."""
    within = dict(module.named_modules(remove_duplicate=False))
    for key, was in kept.items():
        prefix, _, name = key.rpartition(".")
        buffers = within[prefix]._buffers if prefix in within else {}
        if name not in buffers or not isinstance(was, torch.Tensor) or torch.nn.parameter.is_lazy(buffers[name]):
            continue
        now = buffers[name]
        if now is None:
            beside = next(chain(module.parameters(), module.buffers()), was)
            buffers[name] = was.to(beside.device, copy=True)
        elif now.shape != was.shape or any(n > 1 and not stride for n, stride in zip(now.shape, now.stride())):
            buffers[name] = was.to(now.device, copy=True)


def _keep_groups(optimizer, before):
    """Keep the old group objects. `load_state_dict` creates new ones, and a program that sets a rate in the old ones would have no effect."""
    now = optimizer.param_groups
    if type(before) is not list or now is before or len(now) != len(before):
        return
    try:
        optimizer.param_groups = before
    except AttributeError:  # a property that returns the groups of another optimizer
        return
    for one, other in zip(before, now):
        if one is not other:
            content = dict(other)
            one.clear()
            one.update(content)


def _keep_types(torch, optimizer, state):
    """Restore the saved dtypes. `load_state_dict` casts all state of a parameter to the dtype of that parameter."""
    places = chain.from_iterable(group["params"] for group in state["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for place, parameter in zip(places, parameters):
        then, now = state["state"].get(place, {}), optimizer.state.get(parameter, {})
        for name in then.keys() & now.keys():
            one, other = then[name], now[name]
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype != other.dtype:
                now[name] = one.to(other.device)


def _by_rows(columns):
    rows = {}
    for name, column in columns.items():
        for place, value in column.items():
            rows.setdefault(int(place), {})[name] = value
    return rows


def _sparse(torch, indices, values, size, coalesced):
    made = torch.sparse_coo_tensor(indices, values, size, check_invariants=True)
    return made._coalesced_(coalesced)
