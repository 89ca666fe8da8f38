"""A copy of a state in host memory: the only thing the training waits for.

One block of memory is kept from snapshot to snapshot and written as it is. The offset of each tensor follows from the
shapes, dtypes and strides of all tensors. Most states match an earlier one in these, so that a capture only copies.
"""

import ctypes
import json
import mmap
import sys

from .encoding import flatten, get_dtype

ALIGNMENT = 64
MAX_CACHED_LAYOUTS = 4
"""States with and without gradients alternate, and the first state has no optimizer moments yet."""
BLOCK_SIZE_FACTOR = 3
"""The first states are smaller than later ones. Pages that are never written take no memory."""
MAX_PREALLOCATED_FRACTION = 0.25
"""The fraction of free memory that may be taken in advance: the training has not allocated all it needs yet."""


_WIPE_ON_FORK = 18
"""A Linux constant that Python does not define. (Not MADV_DONTFORK: a fork that frees the object would unmap whatever
is there by then.)
"""
ADVICE = (getattr(mmap, "MADV_HUGEPAGE", 14), _WIPE_ON_FORK) if sys.platform == "linux" else ()


class NotEnoughMemory(MemoryError):
    """There is not enough memory for a copy of the state."""


class _BlockLayout(object):
    """The offsets in the block of tensors with these shapes, dtypes and strides."""

    def __init__(self, kinds, tensors):
        self.kinds = kinds
        self.layouts = []
        self.bytes = 0
        for tensor in tensors:
            self.layouts.append([str(tensor.dtype), list(tensor.shape), _find_strides(tensor), self.bytes])
            size = tensor.numel() * tensor.element_size()
            self.bytes += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.text = json.dumps(self.layouts, separators=(",", ":"))
        self.views = []
        """Views of the block, once there is a block that is large enough."""


class Capture(object):
    def __init__(self, torch, free_memory=None):
        """`free_memory()` returns how many bytes may be allocated, or None if that is unknown."""
        self._torch = torch
        self._get_free_memory = free_memory or available_memory
        self._block = None
        self._cached_layouts = []
        """Layouts of the current block, the newest last."""
        self._current = None
        self._patterns = {}
        self._tensors = []
        """Tensors that are not copied yet."""
        self.tree = None
        """The state as JSON text, with each tensor replaced by its index."""

    def preallocate(self, size):
        """Allocate memory before the first capture, and not during one. If there is too little, the first capture
        reports it.
        """
        free_memory = self._get_free_memory()
        if free_memory is not None and size > MAX_PREALLOCATED_FRACTION * free_memory:
            return
        try:
            block = self._allocate(size)
        except NotEnoughMemory:
            return
        # Touch every page. Not with torch: a process that exits meanwhile would be aborted (pytorch#38228).
        ctypes.memset(block.data_ptr(), 0, size)
        self._block = block

    def take(self, state):
        """Copy a state as it is now. This discards the previous capture."""
        self.begin(state)
        self.copy()

    def begin(self, state):
        """Do everything except copying the tensors, which must not change until `copy` has copied them."""
        tensors = []
        tree = flatten(self._torch, state, tensors, self._patterns)
        self._current = self._find_block_layout(tensors)
        self.tree, self._tensors = tree, tensors

    def copy(self):
        tensors, self._tensors = self._tensors, []
        self._copy(tensors, self._current.views)

    @property
    def has_device_tensors(self):
        """Whether some tensors to copy are not on the CPU: then nothing else should use their device meanwhile."""
        return False in {tensor.is_cpu for tensor in self._tensors}

    @property
    def bytes(self):
        return 0 if self._current is None else self._current.bytes

    @property
    def layouts(self):
        """[dtype, shape, strides, offset] of each tensor."""
        return self._current.layouts

    def header(self, fields):
        """Return JSON text with these fields and everything needed to read the bytes."""
        text = json.dumps(fields, separators=(",", ":"))
        return '%s,"tree":%s,"tensors":%s}' % (text[:-1], self.tree, self._current.text)

    def raw(self):
        """Return the bytes of the block, valid until the next capture."""
        if not self.bytes:
            return memoryview(b"")
        return memoryview((ctypes.c_char * self.bytes).from_address(self._block.data_ptr())).cast("B")

    def _find_block_layout(self, tensors):
        # Three lists compare faster than one list of triples.
        kinds = ([t.shape for t in tensors], [t.dtype for t in tensors], [t.stride() for t in tensors])
        for cached in reversed(self._cached_layouts):
            if cached.kinds == kinds:
                return cached
        block_layout = _BlockLayout(kinds, tensors)
        if self._block is None or block_layout.bytes > self._block.numel():
            # Views would keep the old block alive in addition to the new one.
            self._cached_layouts, self._current, self._block = [], None, None
            self._block = self._allocate(block_layout.bytes)
        typed = {}
        block_layout.views = [view_in_block(self._torch, self._block, layout, typed) for layout in block_layout.layouts]
        self._cached_layouts = [*self._cached_layouts[1 - MAX_CACHED_LAYOUTS :], block_layout]
        return block_layout

    def _allocate(self, size):
        free_memory = self._get_free_memory()
        if free_memory is not None and size > free_memory:
            raise NotEnoughMemory(
                "a copy of the state needs %d MiB, but only %d MiB is free" % (size >> 20, free_memory >> 20)
            )
        size = max(size, ALIGNMENT)
        try:
            try:
                block = _map_memory(BLOCK_SIZE_FACTOR * size)
            except (OSError, OverflowError):
                block = _map_memory(size)
        except OSError as error:
            raise NotEnoughMemory("a copy of the state needs %d MiB: %s" % (size >> 20, error.strerror)) from None
        return self._torch.frombuffer(block, dtype=self._torch.uint8)

    def _copy(self, tensors, views):
        torch = self._torch
        on_host = [n for n, tensor in enumerate(tensors) if tensor.is_cpu]
        on_device = [n for n, tensor in enumerate(tensors) if not tensor.is_cpu]
        with torch.no_grad():
            foreach = getattr(torch, "_foreach_copy_", None)
            sources = tensors if not on_device else [tensors[n] for n in on_host]
            if foreach is not None and sources:
                foreach(views if not on_device else [views[n] for n in on_host], sources)
            else:
                for n, source in zip(on_host, sources):
                    views[n].copy_(source)
            # The dtype is the same on both sides: only bytes are transferred and no kernel runs (pytorch#189563).
            for n in on_device:
                views[n].copy_(tensors[n].detach())


def _map_memory(size):
    """Map fresh memory, because the gaps are written too and must not contain old data. Use huge pages if the kernel
    can: requesting small pages is most of the cost of the first copy. Forks see the memory zeroed; otherwise DataLoader
    workers would keep every page that is overwritten here.
    """
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ADVICE:
        try:
            block.madvise(advice)
        except OSError:  # not supported by this kernel
            pass
    return block


def _find_strides(tensor):
    """Return the strides to store, or None if contiguous. A tensor with overlaps or gaps is stored contiguously."""
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.dim()), key=lambda n: -tensor.stride(n))
    expected = 1
    for n in reversed(order):
        if tensor.shape[n] != 1 and tensor.stride(n) != expected:
            return None
        expected *= tensor.shape[n]
    return list(tensor.stride())


def view_in_block(torch, block, layout, typed):
    """Return the view of a block that contains a tensor of this layout. `typed` caches the block viewed as each dtype,
    across calls.
    """
    dtype, shape, strides, offset = layout
    if dtype not in typed:
        kind = get_dtype(torch, dtype)
        size = torch.empty((), dtype=kind, device="cpu").element_size()
        typed[dtype] = (block[: block.numel() // size * size].view(kind), size)
    typed_block, size = typed[dtype]
    if not all(type(n) is int and n >= 0 for n in (*shape, *(strides or ()), offset)):
        raise ValueError("the layout of a tensor contains values that are not non-negative integers")
    contiguous, count = [], 1
    for length in reversed(shape):
        contiguous.insert(0, count)
        count *= length
    strides = contiguous if strides is None else strides
    # Each element has its own memory, so that no small file can describe a tensor of arbitrary size.
    reach = 1 + sum([(length - 1) * stride for length, stride in zip(shape, strides)])
    if offset % size or offset + count * size > block.numel() or (count and reach != count):
        raise ValueError("a tensor extends beyond the data of the snapshot")
    return typed_block.as_strided(shape, strides, typed_block.storage_offset() + offset // size)


def available_memory():
    """Return how many bytes can be allocated without evicting anything, if the system reports it."""
    free = [int(line.split()[1]) * 1024 for line in _read_lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    limit, used = (_read_lines("/sys/fs/cgroup/memory.%s" % name) for name in ("max", "current"))
    if limit and used and limit[0].isdigit() and used[0].isdigit():
        free.append(int(limit[0]) - int(used[0]))
    return min(free) if free else None


def _read_lines(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16).splitlines()
    except OSError:
        return []
