"""A copy of a state in host memory: all that the training waits for.

One block of memory is kept from snapshot to snapshot, and written as it lies. Where each tensor goes follows from the kinds of all of them;
most states are made of the same kinds as one before, so that a capture is nothing but copying.
"""

import ctypes
import json
import mmap
import sys

from .encoding import dtype_called, flatten

ALIGNED = 64
KEPT = 4
"""Arrangements: a state with gradients and one without take turns, and the first has no moments of the optimizer's yet."""
ROOM_IN_STATES = 3
"""The first states are smaller than later ones. What is not written to takes no memory."""
AT_ONCE = 0.25
"""The part of the free memory that is taken before it is needed: the training itself has not had all of its own yet."""


_WIPE_ON_FORK = 18
"""Of Linux; Python has no name for it. (Not MADV_DONTFORK: a fork that frees the object would unmap whatever it has there by then.)"""
ADVICE = (getattr(mmap, "MADV_HUGEPAGE", 14), _WIPE_ON_FORK) if sys.platform == "linux" else ()


class NoRoom(MemoryError):
    """There is not enough memory for a copy of the state."""


class _Arrangement(object):
    """Where tensors of these kinds lie in the block."""

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
        """Views of the block, as soon as there is one that is large enough."""


class Capture(object):
    def __init__(self, torch, room=None):
        """`room()` says how many bytes may be taken, or None where that is not known."""
        self._torch = torch
        self._room = room or available_memory
        self._block = None
        self._known = []
        """Arrangements in the block, the newest last."""
        self._current = None
        self._patterns = {}
        self._tensors = []
        """Those that are still to be copied."""
        self.tree = None
        """The state, as text with the numbers of tensors in it."""

    def make_room(self, size):
        """Before anything is taken, and not while something is. Where there is none, the first that is taken says so."""
        room = self._room()
        if room is not None and size > AT_ONCE * room:
            return
        try:
            block = self._reserved(size)
        except NoRoom:
            return
        # So that it is really there. Not by torch: a process that ends meanwhile would be aborted (pytorch#38228).
        ctypes.memset(block.data_ptr(), 0, size)
        self._block = block

    def take(self, state):
        """Copies a state as it is now. What was captured before is gone."""
        self.begin(state)
        self.copy()

    def begin(self, state):
        """All but the copying of tensors, which `copy` does: until then they must not change."""
        tensors = []
        tree = flatten(self._torch, state, tensors, self._patterns)
        self._current = self._arranged(tensors)
        self.tree, self._tensors = tree, tensors

    def copy(self):
        tensors, self._tensors = self._tensors, []
        self._copy(tensors, self._current.places)

    @property
    def waits_for_a_device(self):
        """Whether what is to be copied lies elsewhere: nothing else should be asked of that device meanwhile."""
        return False in {tensor.is_cpu for tensor in self._tensors}

    @property
    def bytes(self):
        return 0 if self._current is None else self._current.bytes

    @property
    def layouts(self):
        """[type of numbers, shape, strides, where it begins] of each tensor."""
        return self._current.layouts

    def header(self, fields):
        """All that is to be known of the bytes, and these fields, as text in JSON."""
        text = json.dumps(fields, separators=(",", ":"))
        return '%s,"tree":%s,"tensors":%s}' % (text[:-1], self.tree, self._current.text)

    def raw(self):
        """The block's bytes, for as long as nothing else is captured."""
        if not self.bytes:
            return memoryview(b"")
        return memoryview((ctypes.c_char * self.bytes).from_address(self._block.data_ptr())).cast("B")

    def _arranged(self, tensors):
        # Three lists, because they are compared faster than one of triples.
        kinds = ([t.shape for t in tensors], [t.dtype for t in tensors], [t.stride() for t in tensors])
        for known in reversed(self._known):
            if known.kinds == kinds:
                return known
        made = _Arrangement(kinds, tensors)
        if self._block is None or made.bytes > self._block.numel():
            # Views of it would keep the old block alive beside the new one.
            self._known, self._current, self._block = [], None, None
            self._block = self._reserved(made.bytes)
        typed = {}
        made.places = [place_in(self._torch, self._block, layout, typed) for layout in made.layouts]
        self._known = [*self._known[1 - KEPT :], made]
        return made

    def _reserved(self, size):
        room = self._room()
        if room is not None and size > room:
            raise NoRoom("a copy of the state takes %d MiB, and %d MiB are free" % (size >> 20, room >> 20))
        size = max(size, ALIGNED)
        try:
            try:
                block = _large_pages(ROOM_IN_STATES * size)
            except (OSError, OverflowError):
                block = _large_pages(size)
        except OSError as error:
            raise NoRoom("a copy of the state takes %d MiB: %s" % (size >> 20, error.strerror)) from None
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
            # The same type on both sides: only the bytes travel, no kernel runs (pytorch#189563).
            for n in elsewhere:
                places[n].copy_(tensors[n].detach())


def _large_pages(size):
    """Memory of nobody else's before: gaps are written too. A kernel that can gives it in large pages: most of what the first copy costs
    is asking for small ones. Forks of the process find it empty: else a loader's workers would keep all that is written over here.
    """
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ADVICE:
        try:
            block.madvise(advice)
        except OSError:  # it cannot
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


def place_in(torch, block, layout, typed):
    """The view of a block that holds a tensor of this layout. `typed` keeps the block as each type of numbers, from one call to the next."""
    dtype, shape, strides, at = layout
    if dtype not in typed:
        kind = dtype_called(torch, dtype)
        size = torch.empty((), dtype=kind, device="cpu").element_size()
        typed[dtype] = (block[: block.numel() // size * size].view(kind), size)
    whole, size = typed[dtype]
    if not all(type(n) is int and n >= 0 for n in (*shape, *(strides or ()), at)):
        raise ValueError("a tensor's layout is not made of numbers")
    usual, count = [], 1
    for length in reversed(shape):
        usual.insert(0, count)
        count *= length
    strides = usual if strides is None else strides
    # Each number of it has a spot of its own, so that no small file describes a tensor of any size.
    reach = 1 + sum([(length - 1) * stride for length, stride in zip(shape, strides)])
    if at % size or at + count * size > block.numel() or (count and reach != count):
        raise ValueError("a tensor lies outside of the snapshot")
    return whole.as_strided(shape, strides, whole.storage_offset() + at // size)


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
