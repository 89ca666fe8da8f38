"""Copies of a batch of any structure, and detection of its input."""

import copy

INPUT_NAMES = (
    "img", "image", "images", "pixel_values", "inputs", "input", "x", "input_ids", "input_values", "input_features", "features",
    "data", "src", "source", "tokens", "text",
)  # fmt: skip
"""Keys of the input in batches that are dictionaries."""
MAX_BYTES = 1 << 30
"""A larger batch is not kept."""
MAX_DEPTH = 6


def copy_batch(torch, value, depth=0):
    """Return the same nesting with copies of all tensors and arrays. Objects that cannot be copied are shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple) and depth < MAX_DEPTH:
        return type(value)([copy_batch(torch, item, depth + 1) for item in value])
    if type(value) is dict and depth < MAX_DEPTH:
        return {name: copy_batch(torch, item, depth + 1) for name, item in value.items()}
    if value is None or isinstance(value, (int, float, str, bytes, bool)):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def tensor_bytes(torch, batch):
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(torch, batch) if isinstance(leaf, torch.Tensor))


def leaves(torch, value, depth=0):
    """Yield all tensors and arrays, in order."""
    if isinstance(value, torch.Tensor) or _is_array(value):
        yield value
    elif depth < MAX_DEPTH:
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from leaves(torch, item, depth + 1)
        elif _is_mapping(value):
            for name in list(value.keys()):
                yield from leaves(torch, value[name], depth + 1)


def find_input(torch, batch, depth=0):
    """Return (the tensor or array that is the input, whether that is certain), or (None, False) if there is none."""
    if isinstance(batch, torch.Tensor) or _is_array(batch):
        return batch, True
    if _is_mapping(batch):
        for name in INPUT_NAMES:
            found = batch.get(name) if hasattr(batch, "get") else None
            if isinstance(found, torch.Tensor) or _is_array(found):
                return found, True
    elif isinstance(batch, (list, tuple)) and batch and depth < MAX_DEPTH:
        first = batch[0]
        if not isinstance(first, torch.Tensor) and not _is_array(first):
            found = find_input(torch, first, depth + 1)
            if found[0] is not None:
                return found
        elif len(first.shape) >= 2 or "int" not in str(first.dtype):
            return first, True  # a vector of integers in first position may be sample ids
    elif hasattr(batch, "x") and isinstance(batch.x, torch.Tensor):
        return batch.x, True
    candidates = list(leaves(torch, batch))
    return (max(candidates, key=_count_elements), False) if candidates else (None, False)


def zero_input(torch, batch):
    """Set the input of this copy to 0, in place. Return whether there was an input, and whether it was already 0."""
    found, _ = find_input(torch, batch)
    if found is None:
        return False, False
    already = not bool((found != 0).any())
    if isinstance(found, torch.Tensor):
        found.zero_()
    else:
        found[...] = 0
    return True, already


def _is_mapping(value):
    return hasattr(value, "keys") and hasattr(value, "__getitem__") and not isinstance(value, type)


def _is_array(value):
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype.kind in "fiub"


def _count_elements(leaf):
    count = 1
    for length in leaf.shape:
        count *= int(length)
    return count
