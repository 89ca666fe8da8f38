"""Helpers that read a training's tensors without modifying them."""

from ..param_names import parameters_of


def trainable_parameters(*optimizers):
    return [parameter for parameter in parameters_of(*optimizers) if parameter.requires_grad]


def spread(items, most):
    """Return at most `most` of the items, spread from the first to the last."""
    if len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


def is_sharded(tensor):
    return hasattr(type(tensor), "to_local")


def to_local(tensor):
    """Return this rank's shard of a sharded tensor, or any other tensor unchanged. The result is detached."""
    return (tensor.to_local() if is_sharded(tensor) else tensor).detach()


def as_rows(torch, tensor):
    """Return a view with the rows along the first dimension. Leading dimensions of size one are dropped, the rows of a
    vector are its elements, and a complex number becomes two real numbers.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    while tensor.dim() > 1 and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor if tensor.dim() else tensor.reshape(1)


def row_slices(tensor, max_elements):
    """Return (start, stop) pairs over the first dimension, so that no slice is much larger than `max_elements`."""
    rows = tensor.shape[0]
    elements = tensor.numel()
    if elements <= max_elements:
        return [(0, rows)] if elements else []
    step = max(1, max_elements * rows // elements)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def bits_type(torch, dtype):
    """Return the integer type of the same width, or None for a type whose bits cannot be compared directly."""
    if dtype == torch.float32:
        return torch.int32
    if dtype == torch.float64:
        return torch.int64
    return torch.int16 if dtype in (torch.float16, torch.bfloat16) else None


def as_bits(torch, tensor):
    """Return a view of the tensor's bits if the dtype allows it: as bits, a NaN equals itself."""
    bits = bits_type(torch, tensor.dtype)
    return tensor if bits is None else tensor.view(bits)
