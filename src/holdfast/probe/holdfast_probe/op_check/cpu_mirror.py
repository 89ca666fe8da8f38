"""A call's tensors once more on the CPU, storage by storage, so that strides, offsets and aliases stay what they were.

`clone()` and `.cpu()` would make expanded and sliced tensors contiguous, and what is wrong with them would be gone.
"""

MAX_WHOLE = 256 << 20
"""Bytes of a storage up to which all of it is copied where a call writes to it; beyond, what the call itself can reach."""


class NotComparable(Exception):
    """This call cannot be run again on the CPU; the message says why."""


def tensors_in(torch, value, found):
    """All tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(torch, item, found)
    elif isinstance(value, dict):
        for item in value.values():
            tensors_in(torch, item, found)
    return found


def replaced(torch, value, by_id):
    """The same nesting with each tensor replaced; what is not in `by_id` stays."""
    if isinstance(value, torch.Tensor):
        return by_id.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return [replaced(torch, item, by_id) for item in value]
    return value


def reach(tensor):
    """First and one past the last element of its storage that a tensor can touch."""
    start = stop = tensor.storage_offset()
    for size, stride in zip(tensor.shape, tensor.stride()):
        if stride >= 0:
            stop += (size - 1) * stride
        else:
            start += (size - 1) * stride
    return start, stop + 1


def bytes_held(tensor):
    return tensor.untyped_storage().nbytes()


def read(torch, tensor, start, stop):
    """These elements of the tensor's storage, on the CPU: a plain run of memory, with nothing strided to get wrong."""
    run = tensor.as_strided((stop - start,), (1,), start)
    return run.clone() if run.device.type == "cpu" else to_host(torch, run)


def to_host(torch, tensor):
    """Always a copy. `.cpu()` is left to the tensor's own class where a dispatch mode is at work, and may give back the same."""
    return torch.ops.aten._to_copy.default(tensor, device=torch.device("cpu"))


def as_it_lies(torch, tensor):
    """One tensor on the CPU, with its strides."""
    if tensor.layout != torch.strided:
        raise NotComparable("its result is %s" % tensor.layout)
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    start, stop = reach(tensor)
    return read(torch, tensor, start, stop).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - start)


class Storage(object):
    """One storage that a call reads or writes: what of it is copied, before the call and after."""

    __slots__ = ("before", "start", "stop", "tensor", "written")

    def __init__(self, torch, tensors, written):
        self.tensor = first = tensors[0]
        self.written = written
        size = first.element_size()
        reaches = [(low * t.element_size(), high * t.element_size()) for t in tensors for low, high in [reach(t)]]
        low, high = min(a for a, _ in reaches), max(b for _, b in reaches)
        if written and bytes_held(first) <= MAX_WHOLE:
            low, high = 0, max(high, bytes_held(first) // size * size)
        self.start, self.stop = low // size, -(-high // size)
        self.before = read(torch, first, self.start, self.stop)

    def view(self, torch, tensor, memory):
        """`tensor` as it lies in `memory`, which is a copy of this storage."""
        if tensor.dtype == memory.dtype:
            return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - self.start)
        offset = tensor.storage_offset() - self.start * self.tensor.element_size() // tensor.element_size()
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())

    def after(self, torch):
        """The same part of the storage as it is now."""
        return read(torch, self.tensor, self.start, self.stop)


class CpuMirror(object):
    """All storages of a call, taken before it runs."""

    def __init__(self, torch, args, kwargs, written):
        self._torch = torch
        self._args, self._kwargs = args, kwargs
        self.tensors = tensors_in(torch, [list(args), kwargs], [])
        by_storage = {}
        for tensor in self.tensors:
            if tensor.layout != torch.strided or tensor.is_quantized:
                raise NotComparable("it has a %s tensor" % (tensor.layout if not tensor.is_quantized else "quantized"))
            if (tensor.is_complex() and tensor.is_conj()) or tensor.is_neg():
                raise NotComparable("it has a tensor that is conjugated or negated on reading")
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
        """The call's arguments on the CPU, over copies of what was there before it, or over other memory.

        Gives args, kwargs, and the memory of each storage, so that what the call wrote can be read.
        """
        torch = self._torch
        if memories is None:
            memories = [storage.before for storage in self.storages]
        memories = [memory.clone() if storage.written else memory for storage, memory in zip(self.storages, memories)]
        at = {id(storage): memory for storage, memory in zip(self.storages, memories)}
        by_id = {}
        for tensor in self.tensors:
            storage = self._storage_of.get(id(tensor))
            if storage is None:
                by_id[id(tensor)] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            else:
                by_id[id(tensor)] = storage.view(torch, tensor, at[id(storage)])
        args = [replaced(torch, value, by_id) for value in self._args]
        kwargs = {key: replaced(torch, value, by_id) for key, value in self._kwargs.items()}
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return args, kwargs, memories
