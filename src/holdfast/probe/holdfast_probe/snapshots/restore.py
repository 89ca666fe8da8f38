"""Loads saved state back into the objects of a training (stateful.py)."""

import sys
from collections import OrderedDict, defaultdict, deque
from itertools import chain


def restore_module(torch, module, saved, get_tensors, has_custom_state):
    """Load `saved` into a module. `get_tensors()` returns its current (parameters, other tensors, non-persistent
    buffers) by name. A module with custom state methods (`has_custom_state`) may keep a reference to what it is given.
    """
    state, non_persistent = saved["state"], saved.get("passing buffers", {})
    _replace_buffers(torch, module, {**state, **non_persistent})
    state = OrderedDict(clone_tensors(torch, dict(state)) if has_custom_state else state)
    # The version metadata of the current modules: the state was saved by this program.
    state._metadata = getattr(module.state_dict(), "_metadata", None)
    module.load_state_dict(state)
    parameters, _, buffers = get_tensors()
    frozen = set(saved["frozen"])
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)
    set_gradients(torch, parameters, saved["gradients"])
    with torch.no_grad():
        for name, value in non_persistent.items():
            if name in buffers:
                buffers[name].copy_(value)


def make_state_dict(torch, saved):
    """Return a state dict for `load_state_dict` of anything that is not a module. The object may keep the tensors."""
    state = clone_tensors(torch, saved["state"])
    if saved.get("columns") is not None:
        state = dict(state, state=_columns_to_rows(clone_tensors(torch, saved["columns"])))
    return state


def load_state(part, state):
    if state == {}:
        return  # from a disabled GradScaler: an enabled one raises on an empty state
    part.load_state_dict(state)


def restore_optimizer(torch, optimizer, state, dtypes):
    groups = optimizer.param_groups
    load_state(optimizer, state)
    _keep_group_objects(optimizer, groups)
    if dtypes is not None and dtypes == get_dtypes(optimizer):
        _restore_dtypes(torch, optimizer, state)


def get_dtypes(optimizer):
    """Return the dtypes of its parameters."""
    return sorted({str(parameter.dtype) for group in optimizer.param_groups for parameter in group["params"]})


def set_values(torch, parameters, values, frozen):
    """Set the values of parameters that belong only to an optimizer."""
    with torch.no_grad():
        for name, value in values.items():
            if name in parameters:
                if parameters[name].shape != value.shape:
                    then, now = tuple(value.shape), tuple(parameters[name].shape)
                    raise ValueError("parameter %s has shape %s, but the snapshot has %s" % (name, now, then))
                parameters[name].copy_(value)
                parameters[name].requires_grad_(name not in frozen)


def set_gradients(torch, parameters, gradients):
    for parameter in parameters.values():
        parameter.grad = None
    for name, saved in gradients.items():
        parameter = parameters[name]
        gradient = _make_sparse(torch, **saved) if isinstance(saved, dict) else saved
        dtype = getattr(parameter, "grad_dtype", parameter.dtype) or gradient.dtype
        parameter.grad = gradient.to(parameter.device, dtype, copy=True)


def clone_tensors(torch, value):
    """Return a copy in which each tensor has its own memory. All tensors of a snapshot share one block: keeping one
    would keep all of them alive, and torch reads a generator state from the start of the storage.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        result = defaultdict(value.default_factory) if isinstance(value, defaultdict) else type(value)()
        for key, item in value.items():
            result[key] = clone_tensors(torch, item)
        return result
    if isinstance(value, deque):
        return deque((clone_tensors(torch, item) for item in value), value.maxlen)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(clone_tensors(torch, item) for item in value)
    return value.copy() if is_array(value) else value


def is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _replace_buffers(torch, module, saved):
    """Replace buffers that were created or resized during the training, and buffers with overlapping memory, which
    cannot be copied into.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    for key, value in saved.items():
        prefix, _, name = key.rpartition(".")
        buffers = modules[prefix]._buffers if prefix in modules else {}
        if name not in buffers or not isinstance(value, torch.Tensor) or torch.nn.parameter.is_lazy(buffers[name]):
            continue
        now = buffers[name]
        if now is None:
            reference = next(chain(module.parameters(), module.buffers()), value)
            buffers[name] = value.to(reference.device, copy=True)
        elif now.shape != value.shape or any(n > 1 and not stride for n, stride in zip(now.shape, now.stride())):
            buffers[name] = value.to(now.device, copy=True)


def _keep_group_objects(optimizer, before):
    """Keep the old group objects. `load_state_dict` creates new ones, and a rate that a program sets in the old ones
    would have no effect.
    """
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


def _restore_dtypes(torch, optimizer, state):
    """Restore the saved dtypes. `load_state_dict` casts all state of a parameter to the dtype of that parameter."""
    places = chain.from_iterable(group["params"] for group in state["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for place, parameter in zip(places, parameters):
        then, now = state["state"].get(place, {}), optimizer.state.get(parameter, {})
        for name in then.keys() & now.keys():
            one, other = then[name], now[name]
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype != other.dtype:
                now[name] = one.to(other.device)


def _columns_to_rows(columns):
    rows = {}
    for name, column in columns.items():
        for place, value in column.items():
            rows.setdefault(int(place), {})[name] = value
    return rows


def _make_sparse(torch, indices, values, size, coalesced):
    result = torch.sparse_coo_tensor(indices, values, size, check_invariants=True)
    return result._coalesced_(coalesced)
