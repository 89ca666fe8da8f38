"""A copy of a state in host memory: all that the training waits for.

One block of memory is kept from snapshot to snapshot, and every tensor has its place in it, so that a capture is nothing
but copying. The block is written as it lies.
"""

import ctypes
import weakref

from .values import dtype_called, flatten

ALIGNED = 64


class NoRoom(MemoryError):
    """There is not enough memory for a copy of the state."""


class Capture(object):
    def __init__(self, torch, room=None):
        """`room()` says how many bytes may be taken, or None where that is not known."""
        self._torch = torch
        self._room = room or available_memory
        self._block = None
        self._known = []  # weak references to the tensors of the last capture
        self._shapes = []
        self._layouts = []
        self._places = []  # views of the block, one for each tensor
        self.tree = None
        self.bytes = 0

    def take(self, state):
        """Copies a state as it is now. What was captured before is gone."""
        tensors = []
        tree = flatten(self._torch, state, tensors)
        self._prepare(tensors)
        self._copy(tensors)
        self.tree = tree

    @property
    def layouts(self):
        """[type of numbers, shape, strides, where it begins] of each tensor."""
        return self._layouts

    def raw(self):
        """The block's bytes, for as long as nothing else is captured."""
        if not self.bytes:
            return memoryview(b"")
        return memoryview((ctypes.c_char * self.bytes).from_address(self._block.data_ptr())).cast("B")

    def _prepare(self, tensors):
        """Places for these tensors. Where all are the very ones of the last time, nothing is to be done."""
        known = self._known
        if len(known) == len(tensors) and all(map(_is, tensors, known, self._shapes)):
            return
        layouts, at = [], 0
        for tensor in tensors:
            layouts.append([str(tensor.dtype), list(tensor.shape), _strides(tensor), at])
            size = tensor.numel() * tensor.element_size()
            at += (size + ALIGNED - 1) // ALIGNED * ALIGNED
        if self._block is None or at > self._block.numel() or layouts != self._layouts:
            self._places = []
            self._reserve(at)
            self._places = [place_in(self._torch, self._block, layout) for layout in layouts]
        self._known, self._shapes = [weakref.ref(tensor) for tensor in tensors], [tensor.shape for tensor in tensors]
        self._layouts, self.bytes = layouts, at

    def _reserve(self, size):
        if self._block is not None and size <= self._block.numel():
            return
        self._block = None
        room = self._room()
        if room is not None and size > room:
            raise NoRoom("a copy of the state takes %d MB, and %d MB are free" % (size >> 20, room >> 20))
        try:
            self._block = self._torch.zeros(max(size, 1), dtype=self._torch.uint8)  # gaps are written too
        except RuntimeError as error:  # torch's word for memory that it did not get
            raise NoRoom("a copy of the state takes %d MB: %s" % (size >> 20, str(error)[:200])) from None

    def _copy(self, tensors):
        torch = self._torch
        on_host = [n for n, tensor in enumerate(tensors) if tensor.is_cpu]
        elsewhere = [n for n, tensor in enumerate(tensors) if not tensor.is_cpu]
        with torch.no_grad():
            foreach = getattr(torch, "_foreach_copy_", None)
            sources = tensors if not elsewhere else [tensors[n] for n in on_host]
            if foreach is not None and sources:
                foreach(self._places if not elsewhere else [self._places[n] for n in on_host], sources)
            else:
                for n, source in zip(on_host, sources):
                    self._places[n].copy_(source)
            # The same type on both sides: only the bytes travel, no kernel runs (pytorch#189563).
            for n in elsewhere:
                self._places[n].copy_(tensors[n].detach())


def _is(tensor, known, shape):
    """The same tensor as the last time, of the same shape: some are resized in place."""
    return known() is tensor and tensor.shape == shape


def _strides(tensor):
    """None for the usual ones. A tensor that overlaps itself or has gaps is laid out in the usual way."""
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.dim()), key=lambda n: -tensor.stride(n))
    expected = 1
    for n in reversed(order):
        if tensor.shape[n] != 1 and tensor.stride(n) != expected:
            return None
        expected *= tensor.shape[n]
    return list(tensor.stride())


def place_in(torch, block, layout):
    """The view of a block that holds a tensor of this layout."""
    dtype, shape, strides, at = layout
    kind = dtype_called(torch, dtype)
    count = 1
    for length in shape:
        count *= length
    size = count * torch.empty((), dtype=kind).element_size()
    if at < 0 or at + size > block.numel():
        raise ValueError("a tensor lies outside of the snapshot")
    flat = block[at : at + size].view(kind) if size else torch.empty(0, dtype=kind)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def available_memory():
    """Bytes that can be taken without pushing anything out, where the system says so."""
    free = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    limit, used = (_lines("/sys/fs/cgroup/memory.%s" % name) for name in ("max", "current"))
    if limit and used and limit[0].isdigit() and used[0].isdigit():
        free.append(int(limit[0]) - int(used[0]))
    return min(free) if free else None


def _lines(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16).splitlines()
    except OSError:
        return []
