"""Gives a training's objects the state that was kept of them (objects.py)."""

import sys
from collections import OrderedDict, defaultdict, deque
from itertools import chain


def to_module(torch, module, kept, tensors_of, in_its_own_way):
    """`tensors_of()` gives (parameters, other tensors, passing buffers) by name, as they are then. A module that takes its state
    `in_its_own_way` may keep what it is given.
    """
    state, passing = kept["state"], kept.get("passing buffers", {})
    _make_buffers_fit(torch, module, {**state, **passing})
    state = OrderedDict(own(torch, dict(state)) if in_its_own_way else state)
    # What versions of modules it is of: those of the modules that are here, for it is this program's.
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
    """What `load_state_dict` is given of anything else. It may keep the tensors in it."""
    state = own(torch, kept["state"])
    if kept.get("columns") is not None:
        state = dict(state, state=_by_rows(own(torch, kept["columns"])))
    return state


def to_other(part, state):
    if state == {}:
        return  # a scaler that was switched off: one that is on now refuses it
    part.load_state_dict(state)


def to_optimizer(torch, optimizer, state, numbers):
    groups = optimizer.param_groups
    to_other(optimizer, state)
    _keep_groups(optimizer, groups)
    if numbers is not None and numbers == numbers_of(optimizer):
        _keep_types(torch, optimizer, state)


def numbers_of(optimizer):
    """The types of its parameters' numbers."""
    return sorted({str(parameter.dtype) for group in optimizer.param_groups for parameter in group["params"]})


def set_values(torch, parameters, values, frozen):
    """Of parameters that only an optimizer holds."""
    with torch.no_grad():
        for name, was in values.items():
            if name in parameters:
                if parameters[name].shape != was.shape:
                    then, now = tuple(was.shape), tuple(parameters[name].shape)
                    raise ValueError("parameter %s has the shape %s, and had %s" % (name, now, then))
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
    """With tensors of its own. Those of a snapshot lie in one block: whoever keeps one keeps all, and torch reads the state of a generator from
    where its memory begins.
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
    """Of buffers that were made, or got another size, as the training went on; and of those that lie over themselves, which cannot be copied to."""
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
    """`load_state_dict` makes new groups: a program that took the old ones to set a rate in them would set it in vain."""
    now = optimizer.param_groups
    if type(before) is not list or now is before or len(now) != len(before):
        return
    try:
        optimizer.param_groups = before
    except AttributeError:  # it shows those of another
        return
    for one, other in zip(before, now):
        if one is not other:
            content = dict(other)
            one.clear()
            one.update(content)


def _keep_types(torch, optimizer, state):
    """`load_state_dict` gives all that an optimizer knows of a parameter that parameter's type of numbers, whatever it was."""
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
