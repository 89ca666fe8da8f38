"""One pass over a loader that can resume in the middle with the same batches.

The batches of a pass follow from the random state at its start, because the sample order is drawn there. So that state
is saved. A resumed pass draws the same order again, skips the used batches, and then restores all random states.
Workers have their own random state: each batch carries the state of its worker after it, and a resumed worker starts
from that state.
"""

import inspect
import types

from .fingerprint import describe_loader, differences
from .loader_state import TORCH_PREFIX, LoaderState, WorkerState
from .rng import get_rng_states, set_rng_states
from .sampler_replay import SamplerReplay
from .worker_state import ResumedWorkerInit, StatefulCollate, finish_tasks, rotate_workers, unwrap_batches

_NOTHING = object()
SEQUENCES = (list, tuple, range, str, bytes)
NOT_EXACT_ITERABLE = (
    "an iterable dataset is read again from its start: random numbers that it draws while it is read may differ"
)
NOT_EXACT_ORDER = "in_order=False: batches arrive in the order in which they are ready"
NOT_EXACT_OWN_ITER = (
    "the loader has its own __iter__ and workers: it is read again from its start, which gives the same batches only "
    "if it creates new workers for each pass"
)
NOT_EXACT_ITERATOR = (
    "an iterator (%s) is read again from its current position: that is its start only if it is created anew for each "
    "pass and nothing is read ahead"
)
NOT_EXACT_DRAWS = (
    "the sample order is drawn lazily, interleaved with the random numbers of the training, more often than can be "
    "saved"
)
NOT_EXACT_WORKERS = "the workers of the loader were started before run.batches: their random state is unknown"
LOADER_CHANGED = "the loader has changed (%s)"


class ResumableIter(object):
    """An iterable that is iterated once. Between two batches, `state()` returns what another pass resumes from."""

    def __init__(self, torch, loader, resume_state=None, workers=None, loader_state=None, previous_loader=None):
        """`previous_loader` describes the loader in the previous attempt, if this is the first pass over it since."""
        self._torch = torch
        self._loader = loader
        self._resume_state = resume_state
        self._loader_state = LoaderState(torch, loader) if loader_state is None else loader_state
        self.batches = 0 if resume_state is None else resume_state["batches"]
        self.workers = {} if workers is None else workers
        """The random state of each worker after its last batch that was used."""
        self._start = None
        self._reused = False if resume_state is None else resume_state["reused"]
        """Whether workers of the previous pass are reused: then no seed is drawn for new workers."""
        saved_draws = None if resume_state is None else resume_state.get("draws")
        self._description = describe_loader(torch, loader)
        before = previous_loader if resume_state is None else resume_state.get("like")
        self._changes = differences(before, self._description) if before else []
        if self._changes:
            if before.get("workers") != self._description.get("workers"):
                self.workers.clear()
            if resume_state is not None and _samples_differ(before, self._description):
                saved_draws = None
                self.batches = _convert_batch_count(self.batches, before, self._description)
        self._replay = SamplerReplay(torch, saved_draws)
        self._has_torch_iter = _has_torch_iter(torch, loader)
        self._is_lazy = _is_drawn_lazily(torch, loader, self._has_torch_iter)
        self._why_not_exact = self._find_reasons()

    def state(self):
        return {
            "batches": self.batches,
            "start": self._start,
            "now": self._get_state(),
            "reused": self._reused,
            "workers": dict(self.workers),
            "draws": self._replay.state(),
            "like": self._description,
        }

    def __iter__(self):
        iterator = self._begin() if self._resume_state is None else self._resume()
        while True:
            batch = next(iterator, _NOTHING)
            if batch is _NOTHING:
                return
            self.batches += 1
            yield batch

    def why_not_exact(self):
        """Return why this pass may differ from an uninterrupted one, or None."""
        return self._why_not_exact

    # --- starting ------------------------------------------------------------------------------------------------

    def _begin(self):
        self._start = self._get_state()
        if not self._has_torch_iter:
            items = iter(self._loader)
            return self._replay.wrap(items) if self._is_lazy else items
        existing = getattr(self._loader, "_iterator", None)
        if existing is not None:
            finish_tasks(existing, self.workers)
        # Persistent workers continue their random sequence in the next pass; new workers start where the previous ones
        # stopped.
        self._reused = existing is not None or bool(self.workers)
        return self._open(continuing=self._reused and existing is None)

    # --- resuming ------------------------------------------------------------------------------------------------

    def _resume(self):
        self._start = self._resume_state["start"]
        self._set_state(self._start)
        if self._has_torch_iter:
            if getattr(self._loader, "_iterator", None) is not None:
                # Workers that the program started before the resume point are not the ones to resume with.
                self._loader._iterator = None
            iterator = self._open(self.batches, continuing=True)
        else:
            iterator = self._reread()
        self._set_state(self._resume_state["now"])
        return iterator

    def _reread(self):
        """Reread any iterable. Read no more than was used: the next item may be drawn only when it is requested."""
        items = iter(self._loader)
        if self._is_lazy:
            items = self._replay.wrap(items)
        unread = items
        base = self._torch.utils.data.dataloader._BaseDataLoaderIter
        if isinstance(items, base) and not _count_workers(self._loader) and not _is_iterable(self._torch, self._loader):
            unread = items._sampler_iter  # the samples themselves need not be loaded
        for _ in range(self.batches):
            if next(unread, _NOTHING) is _NOTHING:
                break
        return items

    # --- torch's DataLoader --------------------------------------------------------------------------------------

    def _open(self, skipped=0, continuing=False):
        """Return an iterator over the batches after the first `skipped`."""
        loader = self._loader
        if _is_iterable(self._torch, loader):
            # Read from the start: the workers reach the same state again.
            iterator = self._open_with_state(continuing=continuing and not skipped)
            iterator = self._replay.wrap(iterator) if self._is_lazy else iterator
            for _ in range(skipped):
                next(iterator, None)
        elif _count_workers(loader):
            with _SamplerPatch(loader, skipped, self._replay if self._is_lazy else None) as patch:
                iterator = self._open_with_state(continuing)
                patch.restore(iterator)
        else:
            iterator = iter(loader)
            if self._is_lazy:
                iterator._sampler_iter = self._replay.wrap(iterator._sampler_iter)
            for _ in range(skipped):
                next(iterator._sampler_iter, None)
        return iterator

    def _open_with_state(self, continuing=False):
        """Return an iterator whose workers send their random state with each batch."""
        loader = self._loader
        if not _count_workers(loader):
            return iter(loader)
        collate, init, generator = loader.collate_fn, loader.worker_init_fn, loader.generator
        worker_state = WorkerState(collate)
        loader.collate_fn = StatefulCollate(collate, worker_state)
        if continuing:
            loader.worker_init_fn = ResumedWorkerInit(init, dict(self.workers), worker_state.set_state)
            loader.generator = self._torch.Generator() if self._reused else generator
        try:
            with rotate_workers(self.batches if continuing else 0):
                iterator = iter(loader)
        finally:
            loader.collate_fn, loader.worker_init_fn, loader.generator = collate, init, generator
        unwrap_batches(iterator, self.workers)
        return iterator

    # --- state ---------------------------------------------------------------------------------------------------

    def _get_state(self):
        return {"rng": get_rng_states(self._torch), "held": self._loader_state.get_state()}

    def _set_state(self, state):
        set_rng_states(self._torch, state["rng"])
        if "held" in state:
            self._loader_state.set_state(state["held"])
        # The format of older snapshots, which kept only generators at known places.
        for generator, saved in zip(find_generators(self._torch, self._loader), state.get("generators", ())):
            generator.set_state(saved.clone())

    # --- exactness -----------------------------------------------------------------------------------------------

    def _find_reasons(self):
        reasons = [LOADER_CHANGED % "; ".join(self._changes)] if self._changes else []
        if self._resume_state is not None:
            reasons.extend(self._find_loader_reasons())
        return "; ".join(reasons) or None

    def _find_loader_reasons(self):
        loader = self._loader
        if not isinstance(loader, self._torch.utils.data.DataLoader):
            if _may_be_started(loader):
                yield NOT_EXACT_ITERATOR % type(loader).__name__
        elif getattr(loader, "in_order", True) is False:
            yield NOT_EXACT_ORDER
        elif not self._has_torch_iter and _count_workers(loader):
            yield NOT_EXACT_OWN_ITER
        elif _is_iterable(self._torch, loader):
            yield NOT_EXACT_ITERABLE
        elif self.batches and _count_workers(loader) and not self.workers and not self._changes:
            yield NOT_EXACT_WORKERS
        if self._replay.too_many:
            yield NOT_EXACT_DRAWS


class _SamplerPatch(object):
    """While active, a loader starts after `skipped` batches; with `replay`, it draws each of them from its original
    random state.
    """

    def __init__(self, loader, skipped, replay):
        self._loader = loader
        self._name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        self._sampler = getattr(loader, self._name)
        self._changed = skipped > 0 or replay is not None
        self._skipping_sampler = _SkippingSampler(self._sampler, skipped, replay)

    def __enter__(self):
        if self._changed:
            self._loader.__dict__[self._name] = self._skipping_sampler
            existing = getattr(self._loader, "_iterator", None)
            if existing is not None:
                existing._index_sampler = self._skipping_sampler
        return self

    def restore(self, iterator):
        """Restore the sampler, so that the next pass begins at its start."""
        if self._changed:
            iterator._index_sampler = self._sampler

    def __exit__(self, *_):
        self._loader.__dict__[self._name] = self._sampler
        return False


class _SkippingSampler(object):
    def __init__(self, sampler, skipped, replay):
        self._sampler = sampler
        self._skipped = skipped
        self._replay = replay

    def __iter__(self):
        indices = iter(self._sampler)
        return _skip(indices if self._replay is None else self._replay.wrap(indices), self._skipped)

    def __len__(self):
        return max(0, len(self._sampler) - self._skipped)


def _skip(indices, count):
    for _ in range(count):
        if next(indices, _NOTHING) is _NOTHING:
            return
    for index in indices:
        yield index


def find_generators(torch, loader):
    """Return the generators that a loader or its samplers own."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = []
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is known for known in found):
            found.append(generator)
    return found


def _samples_differ(before, current):
    return any(before.get(name) != current.get(name) for name in ("batch size", "batches", "samples"))


def _convert_batch_count(batches, before, current):
    """Convert a number of batches to another batch size. Round down: rather repeat samples than skip any."""
    old, new = before.get("batch size"), current.get("batch size")
    if old and new:
        return batches * old // new
    new, old = current.get("batches"), before.get("batches")
    return batches * new // old if new and old else batches


def _has_torch_iter(torch, loader):
    """Return whether its iterators are those of torch. Subclasses may wrap them, and then they can only be read."""
    base = torch.utils.data.DataLoader
    if not isinstance(loader, base):
        return False
    kind = type(loader)
    return kind.__iter__ is base.__iter__ and kind._get_iterator is base._get_iterator


def _is_drawn_lazily(torch, loader, has_torch_iter):
    """Return whether the sample order may be drawn lazily, while the training draws random numbers too."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return not isinstance(loader, (*SEQUENCES, torch.Tensor))
    if not has_torch_iter:
        return False
    if _is_iterable(torch, loader):
        return not _count_workers(loader)
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = [batch_sampler, getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    known = (*SEQUENCES, type(None))
    return not all(
        type(sampler).__module__.startswith(TORCH_PREFIX) or isinstance(sampler, known) for sampler in samplers
    )


def _may_be_started(iterable):
    if isinstance(iterable, types.GeneratorType):
        return inspect.getgeneratorstate(iterable) != inspect.GEN_CREATED
    return hasattr(type(iterable), "__next__")


def _count_workers(loader):
    return getattr(loader, "num_workers", 0)


def _is_iterable(torch, loader):
    return isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)
