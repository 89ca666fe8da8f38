"""The state of a training's objects: what `state_dict` gives, and what it leaves out."""

from .giving_back import numbers_of, set_gradients, to_module, to_other
from .modules import ModuleTensors


class Objects(object):
    """Objects by name, each with a `state_dict`."""

    def __init__(self, torch, parts):
        self._torch = torch
        self.parts = parts
        self._tensors = {name: ModuleTensors(torch, part) for name, part in parts.items() if self._is_module(part)}

    def _is_module(self, part):
        return isinstance(part, self._torch.nn.Module)

    def state(self):
        """Live tensors, not copies. Gradients too: they may be half of a step that is accumulated."""
        kept, of_modules = {}, set()
        for name, part in self.parts.items():
            if self._is_module(part):
                parameters, *others = self._of(name)
                of_modules.update(map(id, parameters.values()))
                kept[name] = _of_module(self._torch, parameters, *others)
        for name, part in self.parts.items():
            if name not in kept:
                kept[name] = self._of_other(part, of_modules)
        return kept

    def _of(self, name):
        """(parameters, all else that `state_dict` gives, passing buffers) of a module."""
        return self._tensors[name].now() or self._asked(self.parts[name])

    def _asked(self, module):
        """The same of one that has its own way to tell its state."""
        state = module.state_dict(keep_vars=True)
        parameters = {key: value for key, value in state.items() if isinstance(value, self._torch.nn.Parameter)}
        others = {key: value for key, value in state.items() if key not in parameters}
        return parameters, others, _passing_buffers(module)

    def _of_other(self, part, of_modules):
        kept = {"state": part.state_dict()}
        if isinstance(part, self._torch.optim.Optimizer):
            kept["state"], kept["columns"] = _by_columns(kept["state"])
            kept["numbers"] = numbers_of(part)
            kept["gradients"] = _gradients(self._torch, _held(part, of_modules))
        return kept

    def give_back(self, states):
        """Raises ValueError, in words for a person, where the objects are not those that the state is of."""
        if set(self.parts) != set(states):
            then, now = (", ".join(sorted(names)) for names in (states, self.parts))
            raise ValueError("it holds %s, and what is given now is %s" % (then, now))
        for name, part in self.parts.items():
            try:
                if self._is_module(part):
                    self._to_module(name, part, states[name])
                else:
                    self._to_other(part, states[name])
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError("%s cannot be set to it: %s" % (name, str(error)[:500])) from error

    def _to_module(self, name, module, kept):
        in_its_own_way = self._tensors[name].now() is None
        to_module(self._torch, module, kept, lambda: self._of(name), in_its_own_way)

    def _to_other(self, part, kept):
        to_other(self._torch, part, kept)
        if "gradients" in kept:
            of_modules = {id(parameter) for name in self._tensors for parameter in self._of(name)[0].values()}
            held = _held(part, of_modules)
            # Older snapshots have the gradients of modules here too.
            of_its_own = {place: one for place, one in kept["gradients"].items() if place in held}
            set_gradients(self._torch, held, of_its_own)


def _of_module(torch, parameters, others, passing):
    frozen = [name for name, value in parameters.items() if not value.requires_grad]
    kept = {"state": {**parameters, **others}, "gradients": _gradients(torch, parameters), "frozen": frozen}
    if passing:
        kept["passing buffers"] = passing
    return kept


def _by_columns(state):
    """An optimizer's state, and what it knows of each parameter: hundreds of small mappings with the same names, as one for each name.
    (state, None) where they are not alike.
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


def _held(optimizer, of_modules):
    """Group and place -> parameter, of those that are in no module that is kept."""
    groups = enumerate(optimizer.param_groups)
    return {
        "%d.%d" % (g, n): p for g, group in groups for n, p in enumerate(group["params"]) if id(p) not in of_modules
    }


def _passing_buffers(module):
    """Those that `state_dict` leaves out on purpose."""
    return {
        (prefix + "." if prefix else "") + name: inner._buffers[name]
        for prefix, inner in module.named_modules()
        for name in getattr(inner, "_non_persistent_buffers_set", ())
        if inner._buffers.get(name) is not None
    }
