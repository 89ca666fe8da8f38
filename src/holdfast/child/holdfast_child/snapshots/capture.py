"""A copy of a state in host memory: all that the training waits for.

One block of memory is kept from snapshot to snapshot, and every tensor has its spot in it, so that a capture is nothing
but copying. The block is written as it lies. Gradients are made anew with each step: they take over the spots of those before.
"""

import ctypes
import json
import mmap
import weakref

from .values import dtype_called, flatten

ALIGNED = 64
CROWDED = 1.1
"""Where the spots in use take so much less than they span, all are given out anew."""


class NoRoom(MemoryError):
    """There is not enough memory for a copy of the state."""


class _Spot(object):
    """A tensor's place in the block. `kind` is what another tensor must be like to take it over."""

    __slots__ = ("dtype", "end", "kind", "layout", "place", "ref", "shape", "size", "text")

    def __init__(self, kind, layout, size):
        self.kind = kind
        self.layout = layout
        self.text = json.dumps(layout, separators=(",", ":"))
        self.size = size
        self.end = layout[3] + size
        self.place = None

    def belongs_to(self, tensor):
        self.ref = weakref.ref(tensor)
        self.dtype, self.shape = tensor.dtype, tensor.shape


class Capture(object):
    def __init__(self, torch, room=None):
        """`room()` says how many bytes may be taken, or None where that is not known."""
        self._torch = torch
        self._room = room or available_memory
        self._block = None
        self._by_id = {}
        """Spots, by the id of the tensor that each belongs to."""
        self._spots = []
        """Those of the last capture, in the order of its tensors."""
        self._given = []
        """All spots in the block, also of tensors that are gone."""
        self.tree = None
        """The state, as text with the numbers of tensors in it."""
        self.bytes = 0

    def take(self, state):
        """Copies a state as it is now. What was captured before is gone."""
        tensors = []
        tree = flatten(self._torch, state, tensors)
        self._prepare(tensors)
        self._copy(tensors, [spot.place for spot in self._spots])
        self.tree = tree

    @property
    def layouts(self):
        """[type of numbers, shape, strides, where it begins] of each tensor."""
        return [spot.layout for spot in self._spots]

    def header(self, fields):
        """All that is to be known of the bytes, and these fields, as text in JSON."""
        text = json.dumps(fields, separators=(",", ":"))
        layouts = ",".join([spot.text for spot in self._spots])
        return '%s,"tree":%s,"tensors":[%s]}' % (text[:-1], self.tree, layouts)

    def raw(self):
        """The block's bytes, for as long as nothing else is captured."""
        if not self.bytes:
            return memoryview(b"")
        return memoryview((ctypes.c_char * self.bytes).from_address(self._block.data_ptr())).cast("B")

    def _prepare(self, tensors):
        """A spot for each of these tensors; most have theirs from the last time."""
        spots = [self._spot_of(tensor) for tensor in tensors]
        if None in spots:
            spots = self._find_spots(tensors, spots)
        size = max([spot.end for spot in spots], default=0)
        if self._block is None or size > self._block.numel() or size > CROWDED * sum(spot.size for spot in spots):
            self._given = []
            spots = self._find_spots(tensors, [None] * len(tensors))
            size = self._given[-1].end if self._given else 0
            self._spots, self.bytes = [], 0  # their views would keep the old block alive beside the new one
            self._reserve(size)
        for spot in spots:
            if spot.place is None:
                spot.place = place_in(self._torch, self._block, spot.layout)
        self._spots, self.bytes = spots, size

    def _spot_of(self, tensor):
        """Some tensors are resized or given other numbers in place."""
        spot = self._by_id.get(id(tensor))
        if spot is None or spot.ref() is not tensor or spot.shape != tensor.shape or spot.dtype is not tensor.dtype:
            return None
        return spot

    def _find_spots(self, tensors, spots):
        """Those that are missing: of a tensor that is gone and was alike, or new ones behind all others."""
        used = set(map(id, spots))
        free = {}
        for spot in self._given:
            if id(spot) not in used:
                free.setdefault(spot.kind, []).append(spot)
        for n, tensor in enumerate(tensors):
            if spots[n] is None:
                kind = (tensor.dtype, tensor.shape, tensor.stride())
                alike = free.get(kind)
                spots[n] = alike.pop() if alike else self._new_spot(kind, tensor)
                spots[n].belongs_to(tensor)
        self._by_id = {id(tensor): spot for tensor, spot in zip(tensors, spots)}
        return spots

    def _new_spot(self, kind, tensor):
        size = (tensor.numel() * tensor.element_size() + ALIGNED - 1) // ALIGNED * ALIGNED
        begin = self._given[-1].end if self._given else 0
        spot = _Spot(kind, [str(tensor.dtype), list(tensor.shape), _strides(tensor), begin], size)
        self._given.append(spot)
        return spot

    def _reserve(self, size):
        if self._block is not None and size <= self._block.numel():
            return
        self._block = None
        room = self._room()
        if room is not None and size > room:
            raise NoRoom("a copy of the state takes %d MB, and %d MB are free" % (size >> 20, room >> 20))
        try:
            self._block = self._torch.frombuffer(_large_pages(max(size, 1)), dtype=self._torch.uint8)
        except OSError as error:
            raise NoRoom("a copy of the state takes %d MB: %s" % (size >> 20, error.strerror)) from None

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
            # The same type on both sides: only the bytes travel, no kernel runs (pytorch#189563).
            for n in elsewhere:
                places[n].copy_(tensors[n].detach())


def _large_pages(size):
    """Memory full of zeros, because gaps are written too. A kernel that can gives it in large pages: most of what the first copy costs is
    asking for small ones.
    """
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # it has none
            pass
    return block


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
