"""One pass over a loader, which can begin in its middle as if it had begun at its start.

What a pass yields follows from the random numbers at its start: the order of the samples is drawn there. So that moment is kept,
and a pass that goes on draws the same order again, skips what was used, and then has all random numbers set to where they were.
Workers draw numbers of their own: each batch brings along what its worker's were after it, and a worker that goes on begins with
those.
"""

import inspect
import types

from .fingerprint import differences, of_loader
from .loader_state import TORCHS, LoaderState, WorkerState
from .rng import draw_on_from, drawn_so_far
from .sampler_replay import SamplerReplay
from .worker_state import ResumedDataset, StatefulCollate, finish, turn_of, unwrap

_NOTHING = object()
SEQUENCES = (list, tuple, range, str, bytes)
NOT_EXACT_ITERABLE = (
    "an iterable dataset is read again from its start: if it draws random numbers in between, they differ"
)
NOT_EXACT_ORDER = "in_order=False: batches come as they are ready"
NOT_EXACT_OWN_ITER = (
    "the loader has an __iter__ of its own, and workers: it is read again from its start, which is the same only if it makes new workers "
    "for each pass"
)
NOT_EXACT_ITERATOR = (
    "an iterator (%s) is read again from where it is given: that is its start only if it is made anew for each pass, and nothing of it is "
    "read ahead"
)
NOT_EXACT_DRAWS = (
    "the order is drawn bit by bit, together with the training's own random numbers, and more often than is kept"
)
NOT_EXACT_WORKERS = "the loader's workers were there before run.batches was: what they draw from is not known"
OTHER_LOADER = "the loader is another than it was (%s)"


class ResumableIter(object):
    """Iterate over it once. `state()` between two batches is what another one goes on from."""

    def __init__(self, torch, loader, resuming=None, workers=None, held=None, loader_before=None):
        """`loader_before` is what the loader was like in the life before, where this pass is the first over it since."""
        self._torch = torch
        self._loader = loader
        self._going_on = resuming
        self._held = LoaderState(torch, loader) if held is None else held
        self.batches = 0 if resuming is None else resuming["batches"]
        self.workers = {} if workers is None else workers
        """Of each worker, what it draws from, as it was after its last batch that was used."""
        self._start = None
        self._reused = False if resuming is None else resuming["reused"]
        """Whether workers of the pass before were used again: then no seed is drawn for new ones."""
        kept_draws = None if resuming is None else resuming.get("draws")
        self._like = of_loader(torch, loader)
        before = loader_before if resuming is None else resuming.get("like")
        self._other = differences(before, self._like) if before else []
        if self._other:
            if before.get("workers") != self._like.get("workers"):
                self.workers.clear()
            if resuming is not None and _samples_differ(before, self._like):
                kept_draws = None
                self.batches = _as_many_samples(self.batches, before, self._like)
        self._draws = SamplerReplay(torch, kept_draws)
        self._is_torchs = _is_torchs(torch, loader)
        self._watched = _draws_as_it_goes(torch, loader, self._is_torchs)
        self._why_not_exact = self._reasons()

    def state(self):
        return {
            "batches": self.batches,
            "start": self._start,
            "now": self._now(),
            "reused": self._reused,
            "workers": dict(self.workers),
            "draws": self._draws.state(),
            "like": self._like,
        }

    def __iter__(self):
        iterator = self._begin() if self._going_on is None else self._go_on()
        while True:
            batch = next(iterator, _NOTHING)
            if batch is _NOTHING:
                return
            self.batches += 1
            yield batch

    def why_not_exact(self):
        """What may keep this pass from being what it would have been without a death, or None."""
        return self._why_not_exact

    # --- at its start --------------------------------------------------------------------------------------------

    def _begin(self):
        self._start = self._now()
        if not self._is_torchs:
            things = iter(self._loader)
            return self._draws.over(things) if self._watched else things
        alive = getattr(self._loader, "_iterator", None)
        if alive is not None:
            finish(alive, self.workers)
        # Workers that outlive a pass draw on in the next; where they are new, they begin where those before them were.
        self._reused = alive is not None or bool(self.workers)
        return self._opened(continuing=self._reused and alive is None)

    # --- in its middle -------------------------------------------------------------------------------------------

    def _go_on(self):
        self._start = self._going_on["start"]
        self._set(self._start)
        if self._is_torchs:
            if getattr(self._loader, "_iterator", None) is not None:
                # Workers that the program had on its way here are not those that it goes on with.
                self._loader._iterator = None
            iterator = self._opened(self.batches, continuing=True)
        else:
            iterator = self._read_again()
        self._set(self._going_on["now"])
        return iterator

    def _read_again(self):
        """Anything that can be iterated over. Not one more than was used: the next may be drawn only when it is asked for."""
        things = iter(self._loader)
        if self._watched:
            things = self._draws.over(things)
        unread = things
        base = self._torch.utils.data.dataloader._BaseDataLoaderIter
        if isinstance(things, base) and not _workers(self._loader) and not _is_iterable(self._torch, self._loader):
            unread = things._sampler_iter  # the samples themselves need not be loaded
        for _ in range(self.batches):
            if next(unread, _NOTHING) is _NOTHING:
                break
        return things

    # --- a loader of torch's -------------------------------------------------------------------------------------

    def _opened(self, skipped=0, continuing=False):
        """An iterator over its batches, after so many."""
        loader = self._loader
        if _is_iterable(self._torch, loader):
            # Read from its start: what its workers had come to, they come to again.
            iterator = self._carried(continuing=continuing and not skipped)
            iterator = self._draws.over(iterator) if self._watched else iterator
            for _ in range(skipped):
                next(iterator, None)
        elif _workers(loader):
            with _Order(loader, skipped, self._draws if self._watched else None) as order:
                iterator = self._carried(continuing)
                order.give_back(iterator)
        else:
            iterator = iter(loader)
            if self._watched:
                iterator._sampler_iter = self._draws.over(iterator._sampler_iter)
            for _ in range(skipped):
                next(iterator._sampler_iter, None)
        return iterator

    def _carried(self, continuing=False):
        """An iterator whose workers send along what they draw from."""
        loader = self._loader
        if not _workers(loader):
            return iter(loader)
        collate, init, generator = loader.collate_fn, loader.worker_init_fn, loader.generator
        held = WorkerState(collate)
        loader.collate_fn = StatefulCollate(collate, held)
        if continuing:
            loader.worker_init_fn = ResumedDataset(init, dict(self.workers), held.set)
            loader.generator = self._torch.Generator() if self._reused else generator
        try:
            with turn_of(self.batches if continuing else 0):
                iterator = iter(loader)
        finally:
            loader.collate_fn, loader.worker_init_fn, loader.generator = collate, init, generator
        unwrap(iterator, self.workers)
        return iterator

    # --- what is kept --------------------------------------------------------------------------------------------

    def _now(self):
        return {"rng": drawn_so_far(self._torch), "held": self._held.now()}

    def _set(self, state):
        draw_on_from(self._torch, state["rng"])
        if "held" in state:
            self._held.set(state["held"])
        # As snapshots had it before they kept more than generators at known places.
        for generator, was in zip(generators_of(self._torch, self._loader), state.get("generators", ())):
            generator.set_state(was.clone())

    # --- how exact it is -----------------------------------------------------------------------------------------

    def _reasons(self):
        reasons = [OTHER_LOADER % "; ".join(self._other)] if self._other else []
        if self._going_on is not None:
            reasons.extend(self._reasons_of_this_kind())
        return "; ".join(reasons) or None

    def _reasons_of_this_kind(self):
        loader = self._loader
        if not isinstance(loader, self._torch.utils.data.DataLoader):
            if _may_have_begun(loader):
                yield NOT_EXACT_ITERATOR % type(loader).__name__
        elif getattr(loader, "in_order", True) is False:
            yield NOT_EXACT_ORDER
        elif not self._is_torchs and _workers(loader):
            yield NOT_EXACT_OWN_ITER
        elif _is_iterable(self._torch, loader):
            yield NOT_EXACT_ITERABLE
        elif self.batches and _workers(loader) and not self.workers and not self._other:
            yield NOT_EXACT_WORKERS
        if self._draws.too_many:
            yield NOT_EXACT_DRAWS


class _Order(object):
    """While it is entered, a loader's order begins after so many batches; with `draws`, each drawn from what it was drawn from."""

    def __init__(self, loader, skipped, draws):
        self._loader = loader
        self._name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self._sampler = getattr(loader, self._name)
        self._changed = skipped > 0 or draws is not None
        self._later = _Later(self._sampler, skipped, draws)

    def __enter__(self):
        if self._changed:
            self._loader.__dict__[self._name] = self._later
            alive = getattr(self._loader, "_iterator", None)
            if alive is not None:
                alive._index_sampler = self._later
        return self

    def give_back(self, iterator):
        """The next pass begins at its start."""
        if self._changed:
            iterator._index_sampler = self._sampler

    def __exit__(self, *_):
        self._loader.__dict__[self._name] = self._sampler
        return False


class _Later(object):
    def __init__(self, sampler, skipped, draws):
        self._sampler = sampler
        self._skipped = skipped
        self._draws = draws

    def __iter__(self):
        indices = iter(self._sampler)
        return _after(indices if self._draws is None else self._draws.over(indices), self._skipped)

    def __len__(self):
        return max(0, len(self._sampler) - self._skipped)


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


def _samples_differ(before, now):
    return any(before.get(name) != now.get(name) for name in ("batch size", "batches", "samples"))


def _as_many_samples(batches, before, now):
    """So many batches of another size: rather part of one twice than any sample not at all."""
    was, size = before.get("batch size"), now.get("batch size")
    if was and size:
        return batches * was // size
    was, size = now.get("batches"), before.get("batches")
    return batches * was // size if was and size else batches


def _is_torchs(torch, loader):
    """Whether its iterators are torch's: subclasses put others around them, which can only be read."""
    whole = torch.utils.data.DataLoader
    if not isinstance(loader, whole):
        return False
    kind = type(loader)
    return kind.__iter__ is whole.__iter__ and kind._get_iterator is whole._get_iterator


def _draws_as_it_goes(torch, loader, is_torchs):
    """Whether its order may be drawn bit by bit, while the training draws too."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return not isinstance(loader, (*SEQUENCES, torch.Tensor))
    if not is_torchs:
        return False
    if _is_iterable(torch, loader):
        return not _workers(loader)
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = [batch_sampler, getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    known = (*SEQUENCES, type(None))
    return not all(type(one).__module__.startswith(TORCHS) or isinstance(one, known) for one in samplers)


def _may_have_begun(thing):
    if isinstance(thing, types.GeneratorType):
        return inspect.getgeneratorstate(thing) != inspect.GEN_CREATED
    return hasattr(type(thing), "__next__")


def _workers(loader):
    return getattr(loader, "num_workers", 0)


def _is_iterable(torch, loader):
    return isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
