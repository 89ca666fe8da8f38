"""Copies of a call's tensors on the CPU, storage by storage, which preserves strides, offsets and aliases.

`clone()` and `.cpu()` would make expanded and sliced tensors contiguous, which would hide the bugs with such tensors.
"""

MAX_COPIED_BYTES = 256 << 20
"""A written storage up to this size is copied whole. Of a larger one, only the part that the call can access is copied."""


class NotComparable(Exception):
    """This call cannot be repeated on the CPU. The message gives the reason."""


def tensors_in(torch, value, found):
    """Append all tensors in nested lists, tuples and dictionaries to `found`, in order, and return it."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(torch, item, found)
    elif isinstance(value, dict):
        for item in value.values():
            tensors_in(torch, item, found)
    return found


def replace_tensors(torch, value, by_id):
    """Return the same nesting with the tensors replaced. A tensor that is not in `by_id` stays."""
    if isinstance(value, torch.Tensor):
        return by_id.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return [replace_tensors(torch, item, by_id) for item in value]
    return value


def storage_range(tensor):
    """Return the first element of the storage that a tensor can access, and one past the last."""
    start = stop = tensor.storage_offset()
    for size, stride in zip(tensor.shape, tensor.stride()):
        if stride >= 0:
            stop += (size - 1) * stride
        else:
            start += (size - 1) * stride
    return start, stop + 1


def storage_bytes(tensor):
    return tensor.untyped_storage().nbytes()


def read_storage(torch, tensor, start, stop):
    """Copy these elements of the tensor's storage to the CPU as contiguous memory, so that strides cannot go wrong."""
    run = tensor.as_strided((stop - start,), (1,), start)
    return run.clone() if run.device.type == "cpu" else to_host(torch, run)


def to_host(torch, tensor):
    """Copy a tensor to the CPU. In a dispatch mode, `.cpu()` is handled by the tensor's class and may return the same tensor."""
    return torch.ops.aten._to_copy.default(tensor, device=torch.device("cpu"))


def copy_strided(torch, tensor):
    """Copy one tensor to the CPU with its strides."""
    if tensor.layout != torch.strided:
        raise NotComparable("its result is %s" % tensor.layout)
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    start, stop = storage_range(tensor)
    return read_storage(torch, tensor, start, stop).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset() - start
    )


class Storage(object):
    """One storage that a call reads or writes, and the part of it that is copied before and after the call."""

    __slots__ = ("before", "start", "stop", "tensor", "written")

    def __init__(self, torch, tensors, written):
        self.tensor = first = tensors[0]
        self.written = written
        size = first.element_size()
        ranges = [
            (low * t.element_size(), high * t.element_size()) for t in tensors for low, high in [storage_range(t)]
        ]
        low, high = min(a for a, _ in ranges), max(b for _, b in ranges)
        if written and storage_bytes(first) <= MAX_COPIED_BYTES:
            low, high = 0, max(high, storage_bytes(first) // size * size)
        self.start, self.stop = low // size, -(-high // size)
        self.before = read_storage(torch, first, self.start, self.stop)

    def view(self, torch, tensor, memory):
        """Return `tensor` as a view of `memory`, which is a copy of this storage."""
        if tensor.dtype == memory.dtype:
            return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - self.start)
        offset = tensor.storage_offset() - self.start * self.tensor.element_size() // tensor.element_size()
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())

    def after(self, torch):
        """Return the current content of the same part of the storage."""
        return read_storage(torch, self.tensor, self.start, self.stop)


class CpuMirror(object):
    """Copies of all storages of a call, made before it runs."""

    def __init__(self, torch, args, kwargs, written):
        self._torch = torch
        self._args, self._kwargs = args, kwargs
        self.tensors = tensors_in(torch, [list(args), kwargs], [])
        by_storage = {}
        for tensor in self.tensors:
            if tensor.layout != torch.strided or tensor.is_quantized:
                raise NotComparable("it has a %s tensor" % (tensor.layout if not tensor.is_quantized else "quantized"))
            if (tensor.is_complex() and tensor.is_conj()) or tensor.is_neg():
                raise NotComparable("it has a tensor with a conjugate or negative bit")
            if tensor.numel():
                by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        ids = {id(tensor) for tensor in written}
        self.storages = [Storage(torch, group, any(id(t) in ids for t in group)) for group in by_storage.values()]
        self._storage_of = {}
        for storage, group in zip(self.storages, by_storage.values()):
            for tensor in group:
                self._storage_of[id(tensor)] = storage

    def storage_of(self, tensor):
        return self._storage_of.get(id(tensor))

    def arguments(self, memories=None):
        """Return the call's arguments on the CPU, as views of copies from before the call, or of other memory.

        Return args, kwargs, and the memory of each storage, from which the caller can read what the call wrote.
        """
        torch = self._torch
        if memories is None:
            memories = [storage.before for storage in self.storages]
        memories = [memory.clone() if storage.written else memory for storage, memory in zip(self.storages, memories)]
        memory_of = {id(storage): memory for storage, memory in zip(self.storages, memories)}
        by_id = {}
        for tensor in self.tensors:
            storage = self._storage_of.get(id(tensor))
            if storage is None:
                by_id[id(tensor)] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            else:
                by_id[id(tensor)] = storage.view(torch, tensor, memory_of[id(storage)])
        args = [replace_tensors(torch, value, by_id) for value in self._args]
        kwargs = {key: replace_tensors(torch, value, by_id) for key, value in self._kwargs.items()}
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return args, kwargs, memories
