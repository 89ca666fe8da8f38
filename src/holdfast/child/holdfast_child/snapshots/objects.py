"""The state of a training's objects: what `state_dict` gives, and what it leaves out."""


def state_of(torch, parts):
    """Live tensors, not copies. Gradients too: they may be half of a step that is accumulated."""
    return {
        name: _of_module(part) if isinstance(part, torch.nn.Module) else _of_other(torch, part)
        for name, part in parts.items()
    }


def _of_module(module):
    parameters = list(module.named_parameters())
    kept = {
        "state": module.state_dict(keep_vars=True),
        "gradients": {name: p.grad for name, p in parameters if p.grad is not None},
        "frozen": [name for name, p in parameters if not p.requires_grad],
    }
    passing = _passing_buffers(module)
    if passing:
        kept["passing buffers"] = passing
    return kept


def _of_other(torch, part):
    kept = {"state": part.state_dict()}
    groups = getattr(part, "param_groups", None)
    if isinstance(part, torch.optim.Optimizer) and groups is not None:
        kept["gradients"] = {
            "%d.%d" % (g, n): p.grad
            for g, group in enumerate(groups)
            for n, p in enumerate(group["params"])
            if p.grad is not None
        }
    return kept


def _passing_buffers(module):
    """Those that are left out of `state_dict` on purpose: they may still change as the training goes on."""
    return {
        (prefix + "." if prefix else "") + name: inner._buffers[name]
        for prefix, inner in module.named_modules()
        for name in getattr(inner, "_non_persistent_buffers_set", ())
        if inner._buffers.get(name) is not None
    }


def give_back(torch, parts, states):
    """Raises ValueError, in words for a person, where the objects are not those that the state is of."""
    missing, further = sorted(set(parts) - set(states)), sorted(set(states) - set(parts))
    if missing or further:
        raise ValueError(
            "it holds %s, and what is given now is %s" % (", ".join(sorted(states)), ", ".join(sorted(parts)))
        )
    for name, part in parts.items():
        try:
            _give_back(torch, part, states[name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("%s cannot be set to it: %s" % (name, str(error)[:500])) from error


def _give_back(torch, part, kept):
    if not isinstance(part, torch.nn.Module):
        part.load_state_dict(_own(torch, kept["state"]))
        if "gradients" in kept:
            held = [p for group in part.param_groups for p in group["params"]]
            by_place = {
                "%d.%d" % (g, n): p for g, group in enumerate(part.param_groups) for n, p in enumerate(group["params"])
            }
            _set_gradients(torch, held, by_place, kept["gradients"])
        return
    part.load_state_dict(kept["state"])
    parameters = dict(part.named_parameters())
    frozen = set(kept["frozen"])
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen)
    _set_gradients(torch, parameters.values(), parameters, kept["gradients"])
    passing = _passing_buffers(part)
    with torch.no_grad():
        for name, was in kept.get("passing buffers", {}).items():
            if name in passing and passing[name].shape == was.shape:
                passing[name].copy_(was)


def _set_gradients(torch, parameters, by_name, gradients):
    for parameter in parameters:
        parameter.grad = None
    for name, gradient in gradients.items():
        parameter = by_name[name]
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
