"""One pass over a loader that can resume in the middle with the same batches.

The batches of a pass follow from the random state at its start, because the sample order is drawn there. So that state is saved. A
resumed pass draws the same order again, skips the used batches, and then restores all random states. Workers have their own random
state: each batch carries the state of its worker after it, and a resumed worker starts from that state.
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
    "an iterable dataset is read again from its start: random numbers that it draws while it is read may differ"
)
NOT_EXACT_ORDER = "in_order=False: batches arrive in the order in which they are ready"
NOT_EXACT_OWN_ITER = (
    "the loader has its own __iter__ and workers: it is read again from its start, which gives the same batches only if it creates new "
    "workers for each pass"
)
NOT_EXACT_ITERATOR = (
    "an iterator (%s) is read again from its current position: that is its start only if it is created anew for each pass and nothing "
    "is read ahead"
)
NOT_EXACT_DRAWS = (
    "the sample order is drawn lazily, interleaved with the random numbers of the training, more often than can be saved"
)
NOT_EXACT_WORKERS = "the workers of the loader were started before run.batches: their random state is unknown"
OTHER_LOADER = "the loader has changed (%s)"


class ResumableIter(object):
    """An iterable that is iterated once. Between two batches, `state()` returns what another pass resumes from."""

    def __init__(self, torch, loader, resuming=None, workers=None, held=None, loader_before=None):
        """`loader_before` describes the loader in the previous attempt, if this is the first pass over it since."""
        self._torch = torch
        self._loader = loader
        self._going_on = resuming
        self._held = LoaderState(torch, loader) if held is None else held
        self.batches = 0 if resuming is None else resuming["batches"]
        self.workers = {} if workers is None else workers
        """The random state of each worker after its last batch that was used."""
        self._start = None
        self._reused = False if resuming is None else resuming["reused"]
        """Whether workers of the previous pass are reused: then no seed is drawn for new workers."""
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
        """Return why this pass may differ from an uninterrupted one, or None."""
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
        # Persistent workers continue their random sequence in the next pass; new workers start where the previous ones stopped.
        self._reused = alive is not None or bool(self.workers)
        return self._opened(continuing=self._reused and alive is None)

    # --- in its middle -------------------------------------------------------------------------------------------

    def _go_on(self):
        self._start = self._going_on["start"]
        self._set(self._start)
        if self._is_torchs:
            if getattr(self._loader, "_iterator", None) is not None:
                # Workers that the program started before the resume point are not the ones to resume with.
                self._loader._iterator = None
            iterator = self._opened(self.batches, continuing=True)
        else:
            iterator = self._read_again()
        self._set(self._going_on["now"])
        return iterator

    def _read_again(self):
        """Reread any iterable. Read no more than was used: the next item may be drawn only when it is requested."""
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
        """Return an iterator over the batches after the first `skipped`."""
        loader = self._loader
        if _is_iterable(self._torch, loader):
            # Read from the start: the workers reach the same state again.
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
        """Return an iterator whose workers send their random state with each batch."""
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
        # The format of older snapshots, which kept only generators at known places.
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
    """While active, a loader starts after `skipped` batches; with `draws`, it draws each of them from its original random state."""

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
        """Restore the sampler, so that the next pass begins at its start."""
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
    """Return the generators that a loader or its samplers own."""
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
    """Convert a number of batches to another batch size. Round down: repeat part of a batch rather than skip a sample."""
    was, size = before.get("batch size"), now.get("batch size")
    if was and size:
        return batches * was // size
    was, size = now.get("batches"), before.get("batches")
    return batches * was // size if was and size else batches


def _is_torchs(torch, loader):
    """Return whether its iterators are those of torch. Subclasses may wrap them, and then they can only be read."""
    whole = torch.utils.data.DataLoader
    if not isinstance(loader, whole):
        return False
    kind = type(loader)
    return kind.__iter__ is whole.__iter__ and kind._get_iterator is whole._get_iterator


def _draws_as_it_goes(torch, loader, is_torchs):
    """Return whether the sample order may be drawn lazily, while the training draws random numbers too."""
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
