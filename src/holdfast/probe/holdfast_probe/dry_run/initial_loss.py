"""The expected first loss of an untrained model, for losses with a known theoretical value.

The loss's node in the graph identifies the loss function, and its saved tensors give the number of classes and the targets.
The loss is recomputed from them. If the training's loss differs, it contains other terms, and nothing can be expected.
"""

import math

from ..op_check.cpu_mirror import to_host

CROSS_ENTROPY = ("NllLossBackward0", "NllLoss2DBackward0", "NllLossBackward", "NllLoss2DBackward")
BINARY = ("BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyWithLogitsBackward")
BINARY_OF_PROBABILITIES = ("BinaryCrossEntropyBackward0", "BinaryCrossEntropyBackward")
MSE = ("MseLossBackward0", "MseLossBackward")
MAX_NODES = 400
RELATIVE_TOLERANCE = 0.01


def explain_first_loss(torch, loss, value):
    """Return {"kind", "seen", "expected", ...}, or {"why": reason} if nothing can be expected. `value` is the unscaled loss."""
    result = _explain_node(torch, loss)
    if "seen" in result and not math.isclose(result["seen"], value, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-6):
        return {"why": "the loss has other terms besides the %s" % result["kind"]}
    return result


def _explain_node(torch, loss):
    known_nodes = CROSS_ENTROPY + BINARY + BINARY_OF_PROBABILITIES + MSE
    nodes = [node for node in _nodes(loss.grad_fn) if node.name() in known_nodes]
    if not nodes:
        return {"why": "the loss function has no known initial value"}
    if len(nodes) > 1:
        return {"why": "the loss is a combination of several losses"}
    node = nodes[0]
    with torch.no_grad():
        output, target = (to_host(torch, tensor).float() for tensor in (node._saved_self, node._saved_target))
        if node.name() in CROSS_ENTROPY:
            return _cross_entropy(torch, node, output, target.long())
        if node.name() in MSE:
            return _mse(output, target)
        return _binary(torch, node, output, target)


def _cross_entropy(torch, node, output, target):
    dimension = 1 if output.dim() > 1 else 0
    classes = int(output.shape[dimension])
    ignore_index = getattr(node, "_saved_ignore_index", -100)
    ignore_index = (
        ignore_index - (1 << 64) if ignore_index >= 1 << 63 else ignore_index
    )  # it is stored as an unsigned number
    is_counted = target != ignore_index
    if not bool(is_counted.any()) or classes < 2:
        return {"why": "all targets are ignored, or there is only one class"}
    log_probabilities = output.gather(dimension, target.clamp(0, classes - 1).unsqueeze(dimension)).squeeze(dimension)
    seen = float(-(log_probabilities[is_counted] if target.dim() else log_probabilities).mean())
    return {"kind": "cross entropy", "seen": seen, "expected": math.log(classes), "classes": classes}


def _binary(torch, node, output, target):
    function = torch.nn.functional
    if node.name() in BINARY:
        seen = float(function.binary_cross_entropy_with_logits(output, target))
    else:
        seen = float(function.binary_cross_entropy(output, target))
    return {"kind": "binary cross entropy", "seen": seen, "expected": math.log(2.0)}


def _mse(output, target):
    if output.shape != target.shape:
        return {"why": "outputs and targets have different shapes"}
    seen = float((output - target).square().mean())
    variance = float(target.var(unbiased=False))
    return {"kind": "mean squared error", "seen": seen, "expected": float(target.square().mean()), "variance": variance}


def _nodes(node):
    seen, pending = set(), [node]
    while pending and len(seen) < MAX_NODES:
        node = pending.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending.extend(next_node for next_node, _ in node.next_functions)
