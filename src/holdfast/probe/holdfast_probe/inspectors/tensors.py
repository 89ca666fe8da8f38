"""Reading someone's tensors without touching them: which an optimizer holds, and how one falls into rows."""


def trainable(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def is_sharded(tensor):
    return hasattr(type(tensor), "to_local")


def local(tensor):
    """This rank's part of a sharded tensor, and any other tensor as it is, outside of the autograd graph."""
    return (tensor.to_local() if is_sharded(tensor) else tensor).detach()


def by_rows(torch, tensor):
    """The tensor with its rows along the first dimension: leading dimensions of one are dropped, a vector's rows are its
    elements, and a complex number is two real ones.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    while tensor.dim() > 1 and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor if tensor.dim() else tensor.reshape(1)


def row_slices(tensor, most_elements):
    """(start, stop) over the first dimension so that no part is much larger than so many elements."""
    rows = tensor.shape[0]
    elements = tensor.numel()
    if elements <= most_elements:
        return [(0, rows)] if elements else []
    step = max(1, most_elements * rows // elements)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def bits_type(torch, dtype):
    """The integer type of the same width, or None for what has no plain bits to compare."""
    if dtype == torch.float32:
        return torch.int32
    if dtype == torch.float64:
        return torch.int64
    return torch.int16 if dtype in (torch.float16, torch.bfloat16) else None
