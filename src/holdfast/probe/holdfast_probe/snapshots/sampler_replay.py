"""Replay of a sample order that is drawn lazily from the same random state as the training: a lazy sampler, a generator
function.

To reach the middle of such an order again, each item must be drawn from its original random state. So the state is
saved whenever others have drawn in between. This applies only to samplers that are not from torch, because torch draws
the order at the start.
"""

from .rng import get_sources, is_same_source, pack_source, set_source

MAX_BYTES = 8 << 20


class SamplerReplay(object):
    """The random states that the items of a sample order are drawn from."""

    def __init__(self, torch, saved=None):
        saved = saved or {}
        self._torch = torch
        self.item_count = 0
        """How many items were drawn in this attempt."""
        self._known_count = saved.get("things", 0)
        self._at = list(saved.get("at", ()))
        self._sources = list(saved.get("sources", ()))
        self._sizes = list(saved.get("sizes", ()))
        self._states = bytearray(bytes(saved["states"].tolist()) if "states" in saved else b"")
        self.too_many = saved.get("too many", False)
        """Whether it draws more often than can be saved."""
        self._last_sources = None
        self._replayed = 0
        self._start_of_next = 0

    def state(self):
        if not self.item_count:
            return None
        state = {"things": self.item_count, "too many": self.too_many}
        if self._at:
            raw = self._torch.frombuffer(bytearray(self._states), dtype=self._torch.uint8)
            state.update(at=list(self._at), sources=list(self._sources), sizes=list(self._sizes), states=raw)
        return state

    def wrap(self, items):
        """Return the same items, each drawn from its original random state, as far as the previous attempt got."""
        return _ReplayedIterator(self, items)

    def next_item(self, items):
        if self.item_count < self._known_count:
            self._restore_sources()
            item = next(items)
            self.item_count += 1
            if self.item_count == self._known_count:
                self._last_sources = get_sources(self._torch)
            return item
        if self.too_many:
            item = next(items)
            self.item_count += 1
            return item
        before = get_sources(self._torch)
        item = next(items)
        after = get_sources(self._torch)
        if self._last_sources is not None:  # the first item is drawn from the state at the start of the pass
            self._save_sources(before, after)
        self._last_sources = after
        self.item_count += 1
        return item

    def _restore_sources(self):
        while self._replayed < len(self._at) and self._at[self._replayed] <= self.item_count:
            size = self._sizes[self._replayed]
            end = self._start_of_next + size
            set_source(self._torch, self._sources[self._replayed], bytes(self._states[self._start_of_next : end]))
            self._start_of_next = end
            self._replayed += 1

    def _save_sources(self, before, after):
        for name, state in before.items():
            if name not in after or is_same_source(self._torch, name, state, after[name]):
                continue
            if name in self._last_sources and is_same_source(self._torch, name, state, self._last_sources[name]):
                continue
            packed = pack_source(name, state)
            self._at.append(self.item_count)
            self._sources.append(name)
            self._sizes.append(len(packed))
            self._states += packed
        if len(self._states) > MAX_BYTES:
            self.too_many = True
            self._at, self._sources, self._sizes, self._states = [], [], [], bytearray()


class _ReplayedIterator(object):
    def __init__(self, replay, items):
        self._replay = replay
        self._items = items

    def __iter__(self):
        return self

    def __next__(self):
        return self._replay.next_item(self._items)
