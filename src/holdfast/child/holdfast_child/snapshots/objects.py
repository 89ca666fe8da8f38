"""The state of a training's objects: what `state_dict` gives, and what it leaves out."""


class Objects(object):
    """Objects by name, each with a `state_dict`."""

    def __init__(self, torch, parts):
        self._torch = torch
        self.parts = parts
        # Found once: walking a large model takes longer than copying it.
        self._passing = {name: _passing_owners(part) for name, part in parts.items() if self._is_module(part)}

    def _is_module(self, part):
        return isinstance(part, self._torch.nn.Module)

    def state(self):
        """Live tensors, not copies. Gradients too: they may be half of a step that is accumulated."""
        return {
            name: self._of_module(name, part) if self._is_module(part) else self._of_other(part)
            for name, part in self.parts.items()
        }

    def _of_module(self, name, module):
        state = module.state_dict(keep_vars=True)
        gradients, frozen = {}, []
        for key, value in self._parameters_in(state):
            gradient = value.grad
            if gradient is not None:
                gradients[key] = gradient
            if not value.requires_grad:
                frozen.append(key)
        kept = {"state": state, "gradients": gradients, "frozen": frozen}
        passing = _passing_buffers(self._passing[name])
        if passing:
            kept["passing buffers"] = passing
        return kept

    def _parameters_in(self, state):
        """(key, parameter). Asking of each buffer whether it is a Parameter runs Python: it is one only if it is of a class of its own."""
        plain, parameter = self._torch.Tensor, self._torch.nn.Parameter
        return [
            (key, value) for key, value in state.items() if type(value) is not plain and isinstance(value, parameter)
        ]

    def _of_other(self, part):
        kept = {"state": part.state_dict()}
        if isinstance(part, self._torch.optim.Optimizer):
            found = ((place, parameter.grad) for place, parameter in _held(part).items())
            kept["gradients"] = {place: gradient for place, gradient in found if gradient is not None}
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

    def _to_other(self, part, kept):
        part.load_state_dict(_own(self._torch, kept["state"]))
        if "gradients" in kept:
            _set_gradients(_held(part), kept["gradients"])

    def _to_module(self, name, module, kept):
        module.load_state_dict(kept["state"])
        held = dict(self._parameters_in(module.state_dict(keep_vars=True)))
        frozen = set(kept["frozen"])
        for key, value in held.items():
            value.requires_grad_(key not in frozen)
        _set_gradients(held, kept["gradients"])
        passing = _passing_buffers(self._passing[name])
        with self._torch.no_grad():
            for key, was in kept.get("passing buffers", {}).items():
                if key in passing and passing[key].shape == was.shape:
                    passing[key].copy_(was)


def _held(optimizer):
    """Group and place -> parameter."""
    groups = enumerate(optimizer.param_groups)
    return {"%d.%d" % (g, n): p for g, group in groups for n, p in enumerate(group["params"])}


def _passing_owners(module):
    """Modules with buffers that are left out of `state_dict` on purpose: they may still change as the training goes on."""
    owners = module.named_modules()
    return [(prefix, inner) for prefix, inner in owners if getattr(inner, "_non_persistent_buffers_set", ())]


def _passing_buffers(owners):
    return {
        (prefix + "." if prefix else "") + name: inner._buffers[name]
        for prefix, inner in owners
        for name in inner._non_persistent_buffers_set
        if inner._buffers.get(name) is not None
    }


def _set_gradients(parameters, gradients):
    for parameter in parameters.values():
        parameter.grad = None
    for name, gradient in gradients.items():
        parameter = parameters[name]
        parameter.grad = gradient.to(parameter.device, copy=True)


def _own(torch, value):
    """With tensors of its own: an optimizer keeps those that it is given, and these lie in one block."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) is dict:
        return {key: _own(torch, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_own(torch, item) for item in value)
    return value
