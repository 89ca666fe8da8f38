"""One pass over a loader, which can begin in its middle as if it had begun at its start.

What a pass yields follows from the random numbers at its start: the order of the samples is drawn there. So that moment is kept,
and a pass that goes on draws the same order again, skips what was used, and then has all random numbers set to where they were.
Workers draw numbers of their own: each batch brings along what its worker's were after it, and a worker that goes on begins with
those.
"""

import itertools

from .randomness import draw_on_from, drawn_so_far, of_worker, set_in_worker

_NOTHING = object()
NOT_EXACT_ITERABLE = (
    "an iterable dataset is read again from its start: if it draws random numbers in between, they differ"
)
NOT_EXACT_ORDER = "in_order=False: batches come as they are ready"


class Pass(object):
    """Iterate over it once. `state()` between two batches is what another one goes on from."""

    def __init__(self, torch, loader, going_on=None, workers=None):
        self._torch = torch
        self._loader = loader
        self._going_on = going_on
        self.batches = 0 if going_on is None else going_on["batches"]
        self.workers = dict(workers or {})
        """Of each worker, what it draws from, as it was after its last batch that was used."""
        self._start = None
        self._reused = False if going_on is None else going_on["reused"]
        """Whether workers of the pass before were used again: then no seed is drawn for new ones."""

    def state(self):
        return {"batches": self.batches, "start": self._start, "now": self._now(), "reused": self._reused}

    def __iter__(self):
        if not isinstance(self._loader, self._torch.utils.data.DataLoader):
            yield from self._plain()
            return
        iterator = self._begin() if self._going_on is None else self._go_on()
        count = max(1, getattr(self._loader, "num_workers", 0))
        while True:
            batch = next(iterator, _NOTHING)
            if batch is _NOTHING:
                return
            if type(batch) is Carried:
                self.workers[self.batches % count] = batch.drawn
                batch = batch.batch
            self.batches += 1
            yield batch

    def why_not_exact(self):
        """What keeps a resumed pass over this loader from being the same, or None."""
        if getattr(self._loader, "in_order", True) is False:
            return NOT_EXACT_ORDER
        return NOT_EXACT_ITERABLE if _is_iterable(self._torch, self._loader) else None

    def _plain(self):
        """Anything that can be iterated over. What was used is skipped."""
        if self._going_on is None:
            self._start = self._now()
            things = iter(self._loader)
        else:
            self._start = self._going_on["start"]
            self._set(self._start)
            things = itertools.islice(iter(self._loader), self.batches, None)
            first = next(things, _NOTHING)
            self._set(self._going_on["now"])
            things = iter(()) if first is _NOTHING else itertools.chain((first,), things)
        for thing in things:
            self.batches += 1
            yield thing

    def _begin(self):
        self._start = self._now()
        # Workers that outlive a pass draw on in the next; where they are new, they begin where those before them were.
        new = getattr(self._loader, "_iterator", None) is None
        self._reused = not new or bool(self.workers)
        return self._carried(lambda: iter(self._loader), continuing=self._reused and new)

    def _go_on(self):
        self._start = self._going_on["start"]
        self._set(self._start)
        if _is_iterable(self._torch, self._loader):
            iterator = self._carried(lambda: iter(self._loader))
            for _ in range(self.batches):
                next(iterator, None)
        elif getattr(self._loader, "num_workers", 0):
            with _Skipping(self._loader, self.batches):
                iterator = self._carried(lambda: iter(self._loader), continuing=True)
            iterator._index_sampler = iterator._index_sampler._sampler  # the next pass begins at its start
        else:
            iterator = iter(self._loader)
            # Not one more than was used: the next batch's order may be drawn from a generator only when it is asked for.
            for _ in range(self.batches):
                next(iterator._sampler_iter, None)
        self._set(self._going_on["now"])
        return iterator

    def _carried(self, make, continuing=False):
        """An iterator whose workers send along what they draw from."""
        loader = self._loader
        count = getattr(loader, "num_workers", 0)
        if not count:
            return make()
        collate, init = loader.collate_fn, loader.worker_init_fn
        loader.collate_fn = Carrying(collate)
        generator = loader.generator
        if continuing:
            loader.worker_init_fn = Continuing(init, self.workers)
            loader.generator = self._torch.Generator() if self._reused else generator
        try:
            with turn_of(self.batches if continuing else 0):
                return make()
        finally:
            loader.collate_fn, loader.worker_init_fn, loader.generator = collate, init, generator

    def _now(self):
        state = {"rng": drawn_so_far(self._torch)}
        state["generators"] = [generator.get_state() for generator in generators_of(self._torch, self._loader)]
        return state

    def _set(self, state):
        draw_on_from(self._torch, state["rng"])
        for generator, was in zip(generators_of(self._torch, self._loader), state["generators"]):
            generator.set_state(was.clone())


class Carried(object):
    """A batch, and what its worker drew from after it."""

    __slots__ = ("batch", "drawn")

    def __init__(self, batch, drawn):
        self.batch = batch
        self.drawn = drawn

    def pin_memory(self, device=None):
        from torch.utils.data._utils.pin_memory import pin_memory

        return Carried(pin_memory(self.batch, device) if device is not None else pin_memory(self.batch), self.drawn)


class Carrying(object):
    """A loader's collate function, in a worker. `also(dataset)` gives a tensor of what else the worker has to go on with."""

    def __init__(self, collate, also=None):
        self._collate = collate
        self._also = also

    def __call__(self, samples):
        import torch

        batch = self._collate(samples)
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return batch
        drawn = [of_worker(torch)]
        if self._also is not None:
            drawn.append(self._also(worker.dataset))
        return Carried(batch, drawn)


class Continuing(object):
    """A worker's first act: to draw on from where it was. `also(dataset, tensor)` gives back what else it had."""

    def __init__(self, init, drawn, also=None):
        self._init = init
        self._drawn = drawn
        self._also = also

    def __call__(self, worker):
        import torch

        if self._init is not None:
            self._init(worker)
        drawn = self._drawn.get(worker)
        if drawn is None:
            return
        if self._also is not None:
            self._also(torch.utils.data.get_worker_info().dataset, drawn[1])
        set_in_worker(torch, drawn[0])


class turn_of(object):  # noqa: N801 - it is used as a function is
    """While it is entered, a new iterator's first batch goes to the worker whose turn the n-th would have been.

    Batch n is worker n modulo their number's. Giving another worker its place would do for this pass, but workers may outlive it.
    """

    def __init__(self, batch):
        self._batch = batch

    def __enter__(self):
        from torch.utils.data import dataloader

        self._module = dataloader
        dataloader.itertools = _Turned(self._batch)

    def __exit__(self, *_):
        self._module.itertools = itertools
        return False


class _Turned(object):
    """The itertools that torch's loader sees: only where its cycle of workers begins is another."""

    def __init__(self, by):
        self._by = by

    def cycle(self, things):
        things = list(things)
        by = self._by % len(things) if things else 0
        return itertools.cycle(things[by:] + things[:by])

    def __getattr__(self, name):
        return getattr(itertools, name)


class _Skipping(object):
    """While it is entered, a loader's order begins after so many batches."""

    def __init__(self, loader, count):
        self._loader = loader
        self._name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self._sampler = getattr(loader, self._name)
        self._count = count

    def __enter__(self):
        self._loader.__dict__[self._name] = _Later(self._sampler, self._count)

    def __exit__(self, *_):
        self._loader.__dict__[self._name] = self._sampler
        return False


class _Later(object):
    def __init__(self, sampler, count):
        self._sampler = sampler
        self._count = count

    def __iter__(self):
        return _after(iter(self._sampler), self._count)

    def __len__(self):
        return max(0, len(self._sampler) - self._count)


def _after(indices, count):
    for _ in range(count):
        if next(indices, _NOTHING) is _NOTHING:
            return
    for index in indices:
        yield index


def generators_of(torch, loader):
    """Generators of its own that a loader or its sampler draws from."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = []
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is known for known in found):
            found.append(generator)
    return found


class Loaders(object):
    """What of loaders outlives a pass over them: states of their generators, and what their workers draw from, if those live on. A loader is
    known by the place of its first pass in an epoch.
    """

    def __init__(self, torch):
        self._torch = torch
        self._known = {}
        self._workers = {}
        self._generators = {}
        """Of a life before, for loaders that are not met yet."""
        self._back = []

    def state(self):
        states = dict(self._generators)
        for place, loader in self._known.items():
            states[place] = [generator.get_state() for generator in generators_of(self._torch, loader)]
        return {"generators": states, "workers": {place: dict(each) for place, each in self._workers.items()}}

    def go_on(self, state):
        self._generators = dict(state["generators"])
        self._workers = dict(state["workers"])

    def meet(self, call, loader, give_back=True):
        """A pass over this loader begins, so many after the first of its epoch. Its generators get their states back, each once, for loaders may
        share one. Returns the loader's own place.
        """
        place = next((place for place, known in self._known.items() if known is loader), call)
        generators = generators_of(self._torch, loader)
        if generators or _lives_on(loader):
            self._known[place] = loader
        for generator, was in zip(generators, self._generators.pop(place, ())):
            if give_back and not any(generator is known for known in self._back):
                generator.set_state(was.clone())
            self._back.append(generator)
        return place

    def workers_of(self, place):
        return self._workers.get(place)

    def used(self, place, workers):
        """What they drew from after the batch that was used last."""
        if workers:
            self._workers[place] = workers

    def passed(self, place, loader):
        if not _lives_on(loader):
            self._workers.pop(place, None)


def _lives_on(loader):
    return bool(getattr(loader, "persistent_workers", False))


def _is_iterable(torch, loader):
    return isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
