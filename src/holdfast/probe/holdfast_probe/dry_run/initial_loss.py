"""What the first loss of an untrained model should be, where theory says so.

The loss's own node in the graph says what it is, and what it saved says the rest: how many classes, which targets. It is
computed again from that: where the training's loss is something else, other terms are in it, and theory says nothing.
"""

import math

from ..op_check.cpu_mirror import to_host

CROSS_ENTROPY = ("NllLossBackward0", "NllLoss2DBackward0", "NllLossBackward", "NllLoss2DBackward")
BINARY = ("BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyWithLogitsBackward")
BINARY_OF_SHARES = ("BinaryCrossEntropyBackward0", "BinaryCrossEntropyBackward")
SQUARES = ("MseLossBackward0", "MseLossBackward")
NODES_LOOKED_AT = 400
NEAR = 0.01


def first_loss(torch, loss, value):
    """{"kind", "seen", "expected", ...}, or {"why": why there is none}. `value` is the loss as a number, unscaled."""
    found = _of_its_node(torch, loss)
    if "seen" in found and not math.isclose(found["seen"], value, rel_tol=NEAR, abs_tol=1e-6):
        return {"why": "its loss is more than the %s in it" % found["kind"]}
    return found


def _of_its_node(torch, loss):
    known = CROSS_ENTROPY + BINARY + BINARY_OF_SHARES + SQUARES
    nodes = [node for node in _nodes(loss.grad_fn) if node.name() in known]
    if not nodes:
        return {"why": "its loss is none that theory knows a first value of"}
    if len(nodes) > 1:
        return {"why": "its loss is made of several"}
    node = nodes[0]
    with torch.no_grad():
        output, target = (to_host(torch, tensor).float() for tensor in (node._saved_self, node._saved_target))
        if node.name() in CROSS_ENTROPY:
            return _cross_entropy(torch, node, output, target.long())
        if node.name() in SQUARES:
            return _squares(output, target)
        return _binary(torch, node, output, target)


def _cross_entropy(torch, node, output, target):
    dimension = 1 if output.dim() > 1 else 0
    classes = int(output.shape[dimension])
    ignored = getattr(node, "_saved_ignore_index", -100)
    ignored = ignored - (1 << 64) if ignored >= 1 << 63 else ignored  # it is kept without its sign
    counted = target != ignored
    if not bool(counted.any()) or classes < 2:
        return {"why": "no target counts"}
    picked = output.gather(dimension, target.clamp(0, classes - 1).unsqueeze(dimension)).squeeze(dimension)
    seen = float(-(picked[counted] if target.dim() else picked).mean())
    return {"kind": "cross entropy", "seen": seen, "expected": math.log(classes), "classes": classes}


def _binary(torch, node, output, target):
    function = torch.nn.functional
    if node.name() in BINARY:
        seen = float(function.binary_cross_entropy_with_logits(output, target))
    else:
        seen = float(function.binary_cross_entropy(output, target))
    return {"kind": "binary cross entropy", "seen": seen, "expected": math.log(2.0)}


def _squares(output, target):
    if output.shape != target.shape:
        return {"why": "outputs and targets have different shapes"}
    seen = float((output - target).square().mean())
    variance = float(target.var(unbiased=False))
    return {"kind": "mean squared error", "seen": seen, "expected": float(target.square().mean()), "variance": variance}


def _nodes(node):
    seen, waiting = set(), [node]
    while waiting and len(seen) < NODES_LOOKED_AT:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(next_node for next_node, _ in node.next_functions)
