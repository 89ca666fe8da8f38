"""Replay of a sample order that is drawn lazily from the same random state as the training: a lazy sampler, a generator function.

To reach the middle of such an order again, each item must be drawn from its original random state. So the state is saved whenever
others have drawn in between. This applies only to samplers that are not from torch, because torch draws the order at the start.
"""

from .rng import packed_source, same_source, set_source, sources

MAX_BYTES = 8 << 20


class SamplerReplay(object):
    """The random states that the items of a sample order are drawn from."""

    def __init__(self, torch, kept=None):
        kept = kept or {}
        self._torch = torch
        self.things = 0
        """How many items were drawn in this attempt."""
        self._known = kept.get("things", 0)
        self._at = list(kept.get("at", ()))
        self._sources = list(kept.get("sources", ()))
        self._sizes = list(kept.get("sizes", ()))
        self._states = bytearray(bytes(kept["states"].tolist()) if "states" in kept else b"")
        self.too_many = kept.get("too many", False)
        """Whether it draws more often than can be saved."""
        self._after = None
        self._replayed = 0
        self._start_of_next = 0

    def state(self):
        if not self.things:
            return None
        state = {"things": self.things, "too many": self.too_many}
        if self._at:
            raw = self._torch.frombuffer(bytearray(self._states), dtype=self._torch.uint8)
            state.update(at=list(self._at), sources=list(self._sources), sizes=list(self._sizes), states=raw)
        return state

    def over(self, things):
        """Return the same items, each drawn from its original random state, as far as the previous attempt got."""
        return _Watched(self, things)

    def next(self, things):
        if self.things < self._known:
            self._set_back()
            thing = next(things)
            self.things += 1
            if self.things == self._known:
                self._after = sources(self._torch)
            return thing
        if self.too_many:
            thing = next(things)
            self.things += 1
            return thing
        before = sources(self._torch)
        thing = next(things)
        after = sources(self._torch)
        if self._after is not None:  # the first item is drawn from the state at the start of the pass
            self._keep(before, after)
        self._after = after
        self.things += 1
        return thing

    def _set_back(self):
        while self._replayed < len(self._at) and self._at[self._replayed] <= self.things:
            size = self._sizes[self._replayed]
            end = self._start_of_next + size
            set_source(self._torch, self._sources[self._replayed], bytes(self._states[self._start_of_next : end]))
            self._start_of_next = end
            self._replayed += 1

    def _keep(self, before, after):
        for name, state in before.items():
            if name not in after or same_source(self._torch, name, state, after[name]):
                continue
            if name in self._after and same_source(self._torch, name, state, self._after[name]):
                continue
            packed = packed_source(name, state)
            self._at.append(self.things)
            self._sources.append(name)
            self._sizes.append(len(packed))
            self._states += packed
        if len(self._states) > MAX_BYTES:
            self.too_many = True
            self._at, self._sources, self._sizes, self._states = [], [], [], bytearray()


class _Watched(object):
    def __init__(self, draws, things):
        self._draws = draws
        self._things = things

    def __iter__(self):
        return self

    def __next__(self):
        return self._draws.next(self._things)
