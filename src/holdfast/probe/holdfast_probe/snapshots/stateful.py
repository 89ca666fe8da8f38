"""The state of a training's objects: what `state_dict` returns, and what it omits."""

from .module_state import ModuleTensors
from .param_groups import GroupsDiffer, first_ones, make_as_then, names_in, told_of_groups
from .restore import as_it_was, numbers_of, set_gradients, set_values, to_module, to_optimizer, to_other


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
        kept, of_modules = {}, {}
        for name, part in self.parts.items():
            if self._is_module(part):
                parameters, *others = self._of(name)
                of_modules[name] = parameters
                kept[name] = _of_module(self._torch, parameters, *others)
        ids = {id(parameter) for parameters in of_modules.values() for parameter in parameters.values()}
        for name, part in self.parts.items():
            if name not in kept:
                kept[name] = self._of_other(part, ids)
                if name in self._groups and len(part.param_groups) > self._groups[name]:
                    kept[name]["added groups"] = names_in(part.param_groups[self._groups[name] :], _names(of_modules))
        return kept

    def modes(self):
        """Return the training mode of each module. Call right after `state()`."""
        return {name: tensors.modes() for name, tensors in self._tensors.items()}

    def set_modes(self, modes):
        for name, tensors in self._tensors.items():
            if name in modes:
                tensors.set_modes(*modes[name])

    def memory(self):
        """Return the storage addresses of tensors that belong to modules or only to an optimizer."""
        tensors = [tensor for name in self._tensors for some in self._of(name) for tensor in some.values()]
        for name in self._groups:
            tensors.extend(tensor for group in self.parts[name].param_groups for tensor in group["params"])
        plain = [t for t in tensors if isinstance(t, self._torch.Tensor) and t.layout is self._torch.strided]
        return {tensor.untyped_storage().data_ptr() for tensor in plain}

    def _of(self, name):
        """Return (parameters, everything else that `state_dict` returns, non-persistent buffers) of a module."""
        return self._tensors[name].now() or self._asked(self.parts[name])

    def _asked(self, module):
        """Return the same for a module with custom state methods."""
        state = module.state_dict(keep_vars=True)
        parameters = {key: value for key, value in state.items() if isinstance(value, self._torch.nn.Parameter)}
        others = {key: value for key, value in state.items() if key not in parameters}
        return parameters, others, _passing_buffers(module)

    def _of_other(self, part, of_modules):
        kept = {"state": part.state_dict()}
        if self._is_optimizer(part):
            kept["state"], kept["columns"] = _by_columns(kept["state"])
            kept["numbers"] = numbers_of(part)
            held = _held(part, of_modules)
            kept["gradients"] = _gradients(self._torch, held)
            if held:
                kept["values"], kept["frozen"] = held, _frozen(held)
        return kept

    def give_back(self, states, on_the_way=False):
        """Load the states into the objects. Raise ValueError with a readable message if the objects do not match the state. With `on_the_way`
        (before the program reaches the resume point), the program may still add the optimizer groups it had: their state can wait until then.
        """
        if set(self.parts) != set(states):
            then, now = (", ".join(sorted(names)) for names in (states, self.parts))
            raise ValueError("it contains %s, but guard was given %s" % (then, now))
        for name, part in self.parts.items():
            try:
                if self._is_module(part):
                    self._to_module(name, part, states[name])
                elif self._is_optimizer(part):
                    self._to_optimizer(part, states[name], on_the_way)
                else:
                    to_other(part, as_it_was(self._torch, states[name]))
            except GroupsDiffer as error:
                raise GroupsDiffer("%s cannot be restored: %s" % (name, error)) from error
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError("%s cannot be restored: %s" % (name, str(error)[:500])) from error

    def _to_module(self, name, module, kept):
        in_its_own_way = self._tensors[name].now() is None
        to_module(self._torch, module, kept, lambda: self._of(name), in_its_own_way)

    def _to_optimizer(self, optimizer, kept, on_the_way):
        parameters = {(name, key): parameter for name in self._tensors for key, parameter in self._of(name)[0].items()}
        state, added, count = as_it_was(self._torch, kept), kept.get("added groups", []), None
        if added:
            then = state["param_groups"]
            first = len(then) - len(added)
            if on_the_way and first <= len(optimizer.param_groups) < len(then):
                state, count = first_ones(optimizer, state, first), first
            else:
                make_as_then(self._torch, optimizer, then, added, parameters)
        with told_of_groups(optimizer, state):
            to_optimizer(self._torch, optimizer, state, kept.get("numbers"))
        if "gradients" in kept:
            held = _held(optimizer, {*map(id, parameters.values())}, count)
            set_values(self._torch, held, kept.get("values", {}), kept.get("frozen", []))
            # Older snapshots also keep the gradients of modules here.
            of_its_own = {place: one for place, one in kept["gradients"].items() if place in held}
            set_gradients(self._torch, held, of_its_own)


def _of_module(torch, parameters, others, passing):
    state = {**parameters, **others}
    kept = {"state": state, "gradients": _gradients(torch, parameters), "frozen": _frozen(parameters)}
    if passing:
        kept["passing buffers"] = passing
    return kept


def _frozen(parameters):
    return [name for name, value in parameters.items() if not value.requires_grad]


def _names(of_modules):
    """Return [object, name] of each parameter by its id. A tied parameter uses its first name."""
    names = {}
    for part, parameters in of_modules.items():
        for name, parameter in parameters.items():
            names.setdefault(id(parameter), [part, name])
    return names


def _by_columns(state):
    """Split off what an optimizer stores per parameter: hundreds of small mappings with the same keys become one mapping per key.
    Return (state, None) if the keys differ.
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


def _gradients(torch, parameters):
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


def _held(optimizer, of_modules, count=None):
    """Return the parameters in the first groups that belong to no saved module, by group and index."""
    groups = enumerate(optimizer.param_groups[:count])
    return {
        "%d.%d" % (g, n): p for g, group in groups for n, p in enumerate(group["params"]) if id(p) not in of_modules
    }


def _passing_buffers(module):
    """Return the non-persistent buffers, which `state_dict` omits on purpose."""
    return {
        (prefix + "." if prefix else "") + name: inner._buffers[name]
        for prefix, inner in module.named_modules()
        for name in getattr(inner, "_non_persistent_buffers_set", ())
        if inner._buffers.get(name) is not None
    }
