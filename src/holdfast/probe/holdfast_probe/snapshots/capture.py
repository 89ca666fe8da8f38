"""A copy of a state in host memory: the only thing the training waits for.

One block of memory is kept from snapshot to snapshot and written as it is. The offset of each tensor follows from the shapes, dtypes and
strides of all tensors. Most states match an earlier one in these, so that a capture only copies.
"""

import ctypes
import json
import mmap
import sys

from .encoding import dtype_called, flatten

ALIGNED = 64
KEPT = 4
"""States with and without gradients alternate, and the first state has no optimizer moments yet."""
ROOM_IN_STATES = 3
"""The first states are smaller than later ones. Pages that are never written take no memory."""
AT_ONCE = 0.25
"""The fraction of free memory that may be taken in advance: the training has not allocated all of its own memory yet."""


_WIPE_ON_FORK = 18
"""A Linux constant that Python does not define. (Not MADV_DONTFORK: a fork that frees the object would unmap whatever is there by then.)"""
ADVICE = (getattr(mmap, "MADV_HUGEPAGE", 14), _WIPE_ON_FORK) if sys.platform == "linux" else ()


class NoRoom(MemoryError):
    """There is not enough memory for a copy of the state."""


class _Arrangement(object):
    """The offsets in the block of tensors with these shapes, dtypes and strides."""

    def __init__(self, kinds, tensors):
        self.kinds = kinds
        self.layouts = []
        self.bytes = 0
        for tensor in tensors:
            self.layouts.append([str(tensor.dtype), list(tensor.shape), _strides(tensor), self.bytes])
            size = tensor.numel() * tensor.element_size()
            self.bytes += (size + ALIGNED - 1) // ALIGNED * ALIGNED
        self.text = json.dumps(self.layouts, separators=(",", ":"))
        self.places = []
        """Views of the block, once there is a block that is large enough."""


class Capture(object):
    def __init__(self, torch, room=None):
        """`room()` returns how many bytes may be allocated, or None if that is unknown."""
        self._torch = torch
        self._room = room or available_memory
        self._block = None
        self._known = []
        """Layouts of the current block, the newest last."""
        self._current = None
        self._patterns = {}
        self._tensors = []
        """Tensors that are not copied yet."""
        self.tree = None
        """The state as JSON text, with each tensor replaced by its index."""

    def make_room(self, size):
        """Allocate memory before the first capture, and not during one. If there is too little, the first capture reports it."""
        room = self._room()
        if room is not None and size > AT_ONCE * room:
            return
        try:
            block = self._reserved(size)
        except NoRoom:
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
        self._current = self._arranged(tensors)
        self.tree, self._tensors = tree, tensors

    def copy(self):
        tensors, self._tensors = self._tensors, []
        self._copy(tensors, self._current.places)

    @property
    def waits_for_a_device(self):
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

    def _arranged(self, tensors):
        # Three lists compare faster than one list of triples.
        kinds = ([t.shape for t in tensors], [t.dtype for t in tensors], [t.stride() for t in tensors])
        for known in reversed(self._known):
            if known.kinds == kinds:
                return known
        made = _Arrangement(kinds, tensors)
        if self._block is None or made.bytes > self._block.numel():
            # Views would keep the old block alive in addition to the new one.
            self._known, self._current, self._block = [], None, None
            self._block = self._reserved(made.bytes)
        typed = {}
        made.places = [place_in(self._torch, self._block, layout, typed) for layout in made.layouts]
        self._known = [*self._known[1 - KEPT :], made]
        return made

    def _reserved(self, size):
        room = self._room()
        if room is not None and size > room:
            raise NoRoom("a copy of the state needs %d MiB, but only %d MiB are free" % (size >> 20, room >> 20))
        size = max(size, ALIGNED)
        try:
            try:
                block = _large_pages(ROOM_IN_STATES * size)
            except (OSError, OverflowError):
                block = _large_pages(size)
        except OSError as error:
            raise NoRoom("a copy of the state needs %d MiB: %s" % (size >> 20, error.strerror)) from None
        return self._torch.frombuffer(block, dtype=self._torch.uint8)

    def _copy(self, tensors, places):
        torch = self._torch
        on_host = [n for n, tensor in enumerate(tensors) if tensor.is_cpu]
        elsewhere = [n for n, tensor in enumerate(tensors) if not tensor.is_cpu]
        with torch.no_grad():
            foreach = getattr(torch, "_foreach_copy_", None)
            sources = tensors if not elsewhere else [tensors[n] for n in on_host]
            if foreach is not None and sources:
                foreach(places if not elsewhere else [places[n] for n in on_host], sources)
            else:
                for n, source in zip(on_host, sources):
                    places[n].copy_(source)
            # The dtype is the same on both sides: only bytes are transferred and no kernel runs (pytorch#189563).
            for n in elsewhere:
                places[n].copy_(tensors[n].detach())


def _large_pages(size):
    """Map fresh memory, because the gaps are written too and must not contain old data. Use huge pages if the kernel can: requesting
    small pages is most of the cost of the first copy. Forks see the memory zeroed; otherwise DataLoader workers would keep every page that
    is overwritten here.
    """
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ADVICE:
        try:
            block.madvise(advice)
        except OSError:  # not supported by this kernel
            pass
    return block


def _strides(tensor):
    """Return None for contiguous strides. A tensor with overlaps or gaps is stored contiguously."""
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.dim()), key=lambda n: -tensor.stride(n))
    expected = 1
    for n in reversed(order):
        if tensor.shape[n] != 1 and tensor.stride(n) != expected:
            return None
        expected *= tensor.shape[n]
    return list(tensor.stride())


def place_in(torch, block, layout, typed):
    """Return the view of a block that contains a tensor of this layout. `typed` caches the block viewed as each dtype, across calls."""
    dtype, shape, strides, at = layout
    if dtype not in typed:
        kind = dtype_called(torch, dtype)
        size = torch.empty((), dtype=kind, device="cpu").element_size()
        typed[dtype] = (block[: block.numel() // size * size].view(kind), size)
    whole, size = typed[dtype]
    if not all(type(n) is int and n >= 0 for n in (*shape, *(strides or ()), at)):
        raise ValueError("the layout of a tensor contains values that are not non-negative integers")
    usual, count = [], 1
    for length in reversed(shape):
        usual.insert(0, count)
        count *= length
    strides = usual if strides is None else strides
    # Each element has its own memory, so that no small file can describe a tensor of arbitrary size.
    reach = 1 + sum([(length - 1) * stride for length, stride in zip(shape, strides)])
    if at % size or at + count * size > block.numel() or (count and reach != count):
        raise ValueError("a tensor extends beyond the data of the snapshot")
    return whole.as_strided(shape, strides, whole.storage_offset() + at // size)


def available_memory():
    """Return how many bytes can be allocated without evicting anything, if the system reports it."""
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
