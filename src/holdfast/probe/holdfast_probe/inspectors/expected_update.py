"""How far an optimizer's step should have moved a weight, in units of the weight's last place.

A healthy update may be too small to show: below half a unit in the last place the weight stays what it was. The estimate
leans to the small side, so that a weight which stayed although the estimate is above one half has no excuse.
"""

STANDARD = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
MAX_ROUNDINGS_OF_AN_UPDATE = 4
SLACK = 0.002
"""Updates of exactly half a unit stay below it, also when written with a few digits."""
LAYERS_MAY_DIFFER = 64.0
ROUNDED_AWAY_BY_DECAY = 1.0
"""Decay and update are rounded one after the other, and so is the factor of the decay: half a unit each."""


def kind_of(optimizer):
    """Which of torch's own optimizers this one is or derives from, or None."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torch.optim") and base.__name__ in STANDARD:
            return base.__name__
    return None


def expected_ulps(torch, rule, weight, gradient, state):
    """|update| / ulp(weight) for each element, as float32 on the weight's device, or None where that is not known.
    `rule` is a kind of optimizer and the weight's group. All tensors have one shape; `state` maps names to tensors, read
    after the step.
    """
    kind, group = rule
    update = expected_update(torch, rule, weight, gradient, state)
    if update is None:
        return None
    unit = ulp(torch, weight)
    update = update.abs()
    # Numbers below the smallest normal one are flushed to zero on many devices: no weight has to move by them.
    update = torch.where(update < torch.finfo(weight.dtype).tiny, torch.zeros_like(update), update)
    ulps = update / unit * (1 - SLACK - MAX_ROUNDINGS_OF_AN_UPDATE * torch.finfo(weight.dtype).eps)
    if _decays_apart(kind, group):
        ulps = ulps - ROUNDED_AWAY_BY_DECAY
    return ulps


def ulps_by_others(torch, rate, weight, gradient):
    """The same for an optimizer that is not known, from the least that its step moved others for their gradients. What is
    scaled layer by layer may differ widely, so only a small part of that is expected.
    """
    update = gradient.float().abs() * rate
    update = torch.where(update < torch.finfo(weight.dtype).tiny, torch.zeros_like(update), update)
    return update / ulp(torch, weight) / LAYERS_MAY_DIFFER


def expected_update(torch, rule, weight, gradient, state):
    kind, group = rule
    lr = group["lr"]
    decay = group.get("weight_decay", 0)
    weight, gradient = weight.float(), gradient.float()
    if group.get("maximize"):
        gradient = -gradient
    if decay and not _decays_apart(kind, group):
        gradient = gradient + weight * decay
    if kind == "SGD":
        return _sgd(group, gradient, state) * lr
    if kind in ("Adam", "AdamW") and "exp_avg" in state:
        moved = _adam(torch, group, state)
        return (moved + weight * decay if _decays_apart(kind, group) else moved) * lr
    if kind == "RMSprop" and "square_avg" in state and not group.get("centered") and not group.get("momentum"):
        return gradient / (at_most(torch, state["square_avg"]).sqrt() + group["eps"]) * lr
    if kind == "Adagrad" and "sum" in state and not group.get("lr_decay"):
        return gradient / (at_most(torch, state["sum"]).sqrt() + group["eps"]) * lr
    return None


def _decays_apart(kind, group):
    return bool(group.get("weight_decay", 0)) and (kind == "AdamW" or bool(group.get("decoupled_weight_decay")))


def _sgd(group, gradient, state):
    momentum = group.get("momentum", 0)
    if not momentum or "momentum_buffer" not in state:
        return gradient
    buffer = state["momentum_buffer"].float()
    return gradient + buffer * momentum if group.get("nesterov") else buffer


def _adam(torch, group, state):
    first, second = group["betas"]
    step = state["step"]
    seen = at_most(torch, state.get("max_exp_avg_sq", state["exp_avg_sq"]))
    mean = state["exp_avg"].float() / (1 - first**step)
    return mean / ((seen / (1 - second**step)).sqrt() + group["eps"])


def at_most(torch, squares):
    """What mean squares kept in 16 bits may have been before they were rounded, in the extreme to zero. A fused step
    divides by the unrounded ones.
    """
    return squares.float() + ulp(torch, squares) if squares.element_size() == 2 else squares.float()


def ulp(torch, weight):
    """The distance to the next larger magnitude, in float32 (float64 for float64). Integer arithmetic on the bits: not
    every device has nextafter.
    """
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    magnitude = weight.abs()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[magnitude.element_size()]
    following = (magnitude.contiguous().view(bits) + 1).view(magnitude.dtype)
    return following.to(wide) - magnitude.to(wide)
