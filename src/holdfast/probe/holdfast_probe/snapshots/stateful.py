"""The state of a training's objects: what `state_dict` returns, and what it omits."""

from .module_state import ModuleTensors
from .param_groups import GroupsDiffer, add_missing_groups, merge_first_groups, name_parameters, report_group_count
from .restore import (
    get_dtypes,
    load_state,
    make_state_dict,
    restore_module,
    restore_optimizer,
    set_gradients,
    set_values,
)


class StatefulObjects(object):
    """Objects by name, each with a `state_dict`."""

    def __init__(self, torch, parts):
        self._torch = torch
        self.parts = parts
        self._tensors = {name: ModuleTensors(torch, part) for name, part in parts.items() if self._is_module(part)}
        self._groups = {name: len(part.param_groups) for name, part in parts.items() if self._is_optimizer(part)}
        """How many groups each optimizer was created with."""

    def _is_module(self, part):
        return isinstance(part, self._torch.nn.Module)

    def _is_optimizer(self, part):
        return isinstance(part, self._torch.optim.Optimizer)

    def state(self):
        """Return live tensors, not copies. Gradients too: they may be half of an accumulated step."""
        saved, module_parameters = {}, {}
        for name, part in self.parts.items():
            if self._is_module(part):
                parameters, *others = self._get_tensors(name)
                module_parameters[name] = parameters
                saved[name] = _get_module_state(self._torch, parameters, *others)
        ids = {id(parameter) for parameters in module_parameters.values() for parameter in parameters.values()}
        for name, part in self.parts.items():
            if name not in saved:
                saved[name] = self._get_other_state(part, ids)
                if name in self._groups and len(part.param_groups) > self._groups[name]:
                    saved[name]["added groups"] = name_parameters(
                        part.param_groups[self._groups[name] :], _map_names(module_parameters)
                    )
        return saved

    def modes(self):
        """Return the training mode of each module. Call right after `state()`."""
        return {name: tensors.modes() for name, tensors in self._tensors.items()}

    def set_modes(self, modes):
        for name, tensors in self._tensors.items():
            if name in modes:
                tensors.set_modes(*modes[name])

    def memory(self):
        """Return the storage addresses of tensors that belong to modules or only to an optimizer."""
        tensors = [tensor for name in self._tensors for some in self._get_tensors(name) for tensor in some.values()]
        for name in self._groups:
            tensors.extend(tensor for group in self.parts[name].param_groups for tensor in group["params"])
        plain = [t for t in tensors if isinstance(t, self._torch.Tensor) and t.layout is self._torch.strided]
        return {tensor.untyped_storage().data_ptr() for tensor in plain}

    def _get_tensors(self, name):
        """Return (parameters, everything else that `state_dict` returns, non-persistent buffers) of a module."""
        return self._tensors[name].get_tensors() or self._get_custom_tensors(self.parts[name])

    def _get_custom_tensors(self, module):
        """Return the same for a module with custom state methods."""
        state = module.state_dict(keep_vars=True)
        parameters = {key: value for key, value in state.items() if isinstance(value, self._torch.nn.Parameter)}
        others = {key: value for key, value in state.items() if key not in parameters}
        return parameters, others, _find_non_persistent_buffers(module)

    def _get_other_state(self, part, module_parameters):
        saved = {"state": part.state_dict()}
        if self._is_optimizer(part):
            saved["state"], saved["columns"] = _rows_to_columns(saved["state"])
            saved["numbers"] = get_dtypes(part)
            own_parameters = _find_own_parameters(part, module_parameters)
            saved["gradients"] = _get_gradients(self._torch, own_parameters)
            if own_parameters:
                saved["values"], saved["frozen"] = own_parameters, _find_frozen(own_parameters)
        return saved

    def restore(self, states, before_resume_point=False):
        """Load the states into the objects. Raise ValueError with a readable message if the objects do not match the
        state. With `before_resume_point` (before the program reaches the resume point), the program may still add the
        optimizer groups it had: their state can wait until then.
        """
        if set(self.parts) != set(states):
            then, now = (", ".join(sorted(names)) for names in (states, self.parts))
            raise ValueError("it contains %s, but guard was given %s" % (then, now))
        for name, part in self.parts.items():
            try:
                if self._is_module(part):
                    self._restore_module(name, part, states[name])
                elif self._is_optimizer(part):
                    self._restore_optimizer(part, states[name], before_resume_point)
                else:
                    load_state(part, make_state_dict(self._torch, states[name]))
            except GroupsDiffer as error:
                raise GroupsDiffer("%s cannot be restored: %s" % (name, error)) from error
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError("%s cannot be restored: %s" % (name, str(error)[:500])) from error

    def _restore_module(self, name, module, saved):
        has_custom_state = self._tensors[name].get_tensors() is None
        restore_module(self._torch, module, saved, lambda: self._get_tensors(name), has_custom_state)

    def _restore_optimizer(self, optimizer, saved, before_resume_point):
        parameters = {
            (name, key): parameter for name in self._tensors for key, parameter in self._get_tensors(name)[0].items()
        }
        state, added, count = make_state_dict(self._torch, saved), saved.get("added groups", []), None
        if added:
            then = state["param_groups"]
            first = len(then) - len(added)
            if before_resume_point and first <= len(optimizer.param_groups) < len(then):
                state, count = merge_first_groups(optimizer, state, first), first
            else:
                add_missing_groups(self._torch, optimizer, then, added, parameters)
        with report_group_count(optimizer, state):
            restore_optimizer(self._torch, optimizer, state, saved.get("numbers"))
        if "gradients" in saved:
            own_parameters = _find_own_parameters(optimizer, {*map(id, parameters.values())}, count)
            set_values(self._torch, own_parameters, saved.get("values", {}), saved.get("frozen", []))
            # Older snapshots also keep the gradients of modules here.
            own_gradients = {place: one for place, one in saved["gradients"].items() if place in own_parameters}
            set_gradients(self._torch, own_parameters, own_gradients)


def _get_module_state(torch, parameters, others, non_persistent):
    state = {**parameters, **others}
    saved = {"state": state, "gradients": _get_gradients(torch, parameters), "frozen": _find_frozen(parameters)}
    if non_persistent:
        saved["passing buffers"] = non_persistent
    return saved


def _find_frozen(parameters):
    return [name for name, value in parameters.items() if not value.requires_grad]


def _map_names(module_parameters):
    """Return [object, name] of each parameter by its id. A tied parameter uses its first name."""
    names = {}
    for part, parameters in module_parameters.items():
        for name, parameter in parameters.items():
            names.setdefault(id(parameter), [part, name])
    return names


def _rows_to_columns(state):
    """Split off what an optimizer stores per parameter: hundreds of small mappings with the same keys become one
    mapping per key. Return (state, None) if the keys differ.
    """
    rows = state.get("state") if isinstance(state, dict) else None
    if type(rows) is not dict or {*map(type, rows)} != {int} or {*map(type, rows.values())} != {dict}:
        return state, None
    names = {*map(tuple, rows.values())}
    if len(names) != 1:
        return state, None
    places = [*map(str, rows)]
    columns = {name: dict(zip(places, [row[name] for row in rows.values()])) for name in names.pop()}
    return {key: value for key, value in state.items() if key != "state"}, columns


def _get_gradients(torch, parameters):
    found = {name: value.grad for name, value in parameters.items() if value.grad is not None}
    for name, gradient in found.items():
        if gradient.layout is torch.sparse_coo:
            found[name] = {
                "indices": gradient._indices(),
                "values": gradient._values(),
                "size": gradient.shape,
                "coalesced": gradient.is_coalesced(),
            }
    return found


def _find_own_parameters(optimizer, module_parameters, count=None):
    """Return the parameters in the first groups that belong to no saved module, by group and index."""
    groups = enumerate(optimizer.param_groups[:count])
    return {
        "%d.%d" % (g, n): p
        for g, group in groups
        for n, p in enumerate(group["params"])
        if id(p) not in module_parameters
    }


def _find_non_persistent_buffers(module):
    """Return the non-persistent buffers, which `state_dict` omits on purpose."""
    return {
        (prefix + "." if prefix else "") + name: inner._buffers[name]
        for prefix, inner in module.named_modules()
        for name in getattr(inner, "_non_persistent_buffers_set", ())
        if inner._buffers.get(name) is not None
    }
