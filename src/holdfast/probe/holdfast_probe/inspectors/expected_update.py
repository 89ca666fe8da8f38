"""The expected change of a weight by an optimizer step, in units of the weight's last place (ulps).

A healthy update may be too small to have an effect: below half an ulp the weight does not change. The estimate errs on the
small side, so a weight must change if its estimate is above one half.
"""

STANDARD = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
MAX_ROUNDINGS_OF_AN_UPDATE = 4
SLACK = 0.002
"""Keeps updates of exactly half an ulp below one half, even when written with a few digits."""
MAX_LAYER_RATIO = 64.0
MAX_DECAY_ROUNDING = 1.0
"""Decay and update are rounded one after the other, and the decay factor is rounded too: half an ulp each."""


def optimizer_kind(optimizer):
    """Return the name of the torch optimizer that this is or derives from, or None."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torch.optim") and base.__name__ in STANDARD:
            return base.__name__
    return None


def expected_ulps(torch, rule, weight, gradient, state):
    """Return |update| / ulp(weight) for each element, as float32 on the weight's device, or None if it is unknown.
    `rule` is a kind of optimizer and the weight's group. All tensors have the same shape. `state` maps names to tensors
    that were read after the step.
    """
    kind, group = rule
    update = expected_update(torch, rule, weight, gradient, state)
    if update is None:
        return None
    unit = ulp(torch, weight)
    update = update.abs()
    # Many devices flush numbers below the smallest normal number to zero, so they need not change a weight.
    update = torch.where(update < torch.finfo(weight.dtype).tiny, torch.zeros_like(update), update)
    ulps = update / unit * (1 - SLACK - MAX_ROUNDINGS_OF_AN_UPDATE * torch.finfo(weight.dtype).eps)
    if _has_decoupled_decay(kind, group):
        ulps = ulps - MAX_DECAY_ROUNDING
    return ulps


def ulps_from_others(torch, rate, weight, gradient):
    """Return the same for an unknown optimizer, from the smallest change per gradient of other parameters. Optimizers that
    scale each layer separately may differ widely between layers, so only a small part of that is expected.
    """
    update = gradient.float().abs() * rate
    update = torch.where(update < torch.finfo(weight.dtype).tiny, torch.zeros_like(update), update)
    return update / ulp(torch, weight) / MAX_LAYER_RATIO


def expected_update(torch, rule, weight, gradient, state):
    kind, group = rule
    lr = group["lr"]
    decay = group.get("weight_decay", 0)
    weight, gradient = weight.float(), gradient.float()
    if group.get("maximize"):
        gradient = -gradient
    if decay and not _has_decoupled_decay(kind, group):
        gradient = gradient + weight * decay
    if kind == "SGD":
        return _sgd_update(group, gradient, state) * lr
    if kind in ("Adam", "AdamW") and "exp_avg" in state:
        adam_update = _adam_update(torch, group, state)
        return (adam_update + weight * decay if _has_decoupled_decay(kind, group) else adam_update) * lr
    if kind == "RMSprop" and "square_avg" in state and not group.get("centered") and not group.get("momentum"):
        return gradient / (upper_bound(torch, state["square_avg"]).sqrt() + group["eps"]) * lr
    if kind == "Adagrad" and "sum" in state and not group.get("lr_decay"):
        return gradient / (upper_bound(torch, state["sum"]).sqrt() + group["eps"]) * lr
    return None


def _has_decoupled_decay(kind, group):
    return bool(group.get("weight_decay", 0)) and (kind == "AdamW" or bool(group.get("decoupled_weight_decay")))


def _sgd_update(group, gradient, state):
    momentum = group.get("momentum", 0)
    if not momentum or "momentum_buffer" not in state:
        return gradient
    buffer = state["momentum_buffer"].float()
    return gradient + buffer * momentum if group.get("nesterov") else buffer


def _adam_update(torch, group, state):
    first, second = group["betas"]
    step = state["step"]
    squares_bound = upper_bound(torch, state.get("max_exp_avg_sq", state["exp_avg_sq"]))
    mean = state["exp_avg"].float() / (1 - first**step)
    return mean / ((squares_bound / (1 - second**step)).sqrt() + group["eps"])


def upper_bound(torch, squares):
    """Return the largest values that 16-bit mean squares may have had before rounding, which can round them to zero. A fused
    step divides by the unrounded values.
    """
    return squares.float() + ulp(torch, squares) if squares.element_size() == 2 else squares.float()


def ulp(torch, weight):
    """Return the distance to the next larger magnitude, in float32 (float64 for float64). This uses integer arithmetic on
    the bits, because not every device has nextafter.
    """
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    magnitude = weight.abs()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[magnitude.element_size()]
    following = (magnitude.contiguous().view(bits) + 1).view(magnitude.dtype)
    return following.to(wide) - magnitude.to(wide)
