"""The loader of an Ultralytics training: one iterator for all epochs, which can be recreated in the middle of an epoch.

The order of a pass is drawn from the loader's generator when the pass is first requested; workers request it some
batches before it begins. So the generator state at that moment is saved for each pass. A resumed pass draws the same
order again and skips the used batches. Augmentation draws from the random state of the process and mixes in images from
a buffer of the last loaded ones. With workers, both live in the workers and are returned with each batch.
"""

import itertools

from ...snapshots.worker_state import BatchWithState, ResumedWorkerInit, StatefulCollate, rotate_workers


class ResumableLoader(object):
    def __init__(self, torch, loader):
        self._torch = torch
        self.loader = loader
        self._generator = loader.generator
        self._replayable = ReplayableSampler(loader.batch_sampler.sampler, loader.generator)
        loader.batch_sampler.sampler = self._replayable
        self._pass = 0
        """The pass of the iterator that is being read."""
        self._read = 0
        """How many of its batches were read."""
        self._total_read = 0
        """How many batches were read in all passes."""
        self._initial_state = None
        """The generator state before the iterator was created: workers are seeded from it."""
        self._workers = {}
        self._saved = None
        self._skipped = 0
        self._wrap_reset()

    def _wrap_reset(self):
        """Track `reset`: Ultralytics creates a new iterator when the augmentation changes."""
        original = self.loader.reset

        def reset():
            self._saved = None
            original()

        self.loader.reset = reset

    # --- reading -------------------------------------------------------------------------------------------------

    def next(self):
        loader = self.loader
        if loader.iterator is None:
            self._create()
        if self._read >= len(loader):
            # Not earlier: if a pass ends with a full batch, its sampler draws once more at the next request.
            self._pass, self._read = self._pass + 1, 0
            self._replayable.discard_before(self._pass)
        batch = next(loader.iterator)
        if type(batch) is BatchWithState:
            self._workers[self._total_read % loader.num_workers] = batch.state
            batch = batch.batch
        self._total_read += 1
        self._read += 1
        return batch

    def _create(self):
        if self._saved is not None:
            self._recreate(self._saved)
            return
        self._initial_state = self._generator.get_state()
        self._pass = self._total_read = 0
        self._read, self._skipped = self._skipped, 0
        self._workers = {}
        self._replayable.start_pass(0, None, self._read)
        self.loader.iterator = self._make_iterator()

    # --- resuming ------------------------------------------------------------------------------------------------

    def state(self):
        """Return the state between two batches."""
        if self._saved is not None:
            return self._saved
        return {
            "made": self.loader.iterator is not None,
            "born": self._initial_state,
            "now": self._generator.get_state(),
            "pass": self._pass,
            "start": self._replayable.get_start(self._pass),
            "read": self._read,
            "taken": self._total_read,
            "workers": dict(self._workers),
            "buffer": get_buffer(self.loader.dataset),
        }

    def load_state(self, saved):
        """Load a state. The iterator is created when it is first read: a training that resumes with a validation may
        never read it.
        """
        self._generator.set_state(saved["now"].clone())
        fill_buffer(self.loader.dataset, saved["buffer"])
        self._saved = saved if saved["made"] else None

    def start_at(self, batch):
        """Start a new order at this batch, if the loader has changed."""
        self._skipped = batch

    def _recreate(self, saved):
        self._saved = None
        self._initial_state, self._total_read = saved["born"], saved["taken"]
        self._pass, self._read = saved["pass"], saved["read"]
        self._workers = dict(saved["workers"])
        now = self._generator.get_state()
        self._generator.set_state(saved["born"].clone())
        self._replayable.start_pass(self._pass, saved["start"], self._read)
        self.loader.iterator = self._make_iterator(continuing=True)
        if (
            not self.loader.num_workers
        ):  # with workers, the order is drawn at once, which leaves the generator as it was
            self._generator.set_state(now)

    def _make_iterator(self, continuing=False):
        """Return an iterator whose workers send their random state with each batch."""
        loader = self.loader
        if not loader.num_workers:
            return loader._get_iterator()
        collate, init = loader.collate_fn, loader.worker_init_fn
        loader.collate_fn = StatefulCollate(collate, pack_buffer)
        if continuing:
            loader.worker_init_fn = ResumedWorkerInit(init, self._workers, unpack_buffer)
        try:
            with rotate_workers(self._total_read):
                return loader._get_iterator()
        finally:
            loader.collate_fn, loader.worker_init_fn = collate, init


class ReplayableSampler(object):
    """A batch sampler that remembers the generator state before each pass."""

    def __init__(self, sampler, generator):
        self._sampler = sampler
        self._generator = generator
        self._starts = {}
        self._next = 0
        self._start_state = None
        self._skip = 0

    def start_pass(self, number, start=None, skip=0):
        """Set the number of the next pass; with `start`, draw it from that state, and skip `skip` batches of it."""
        self._starts = {}
        self._next, self._start_state, self._skip = number, start, skip

    def get_start(self, number):
        """Return the generator state before a pass; None if it is not drawn yet."""
        return self._starts.get(number)

    def discard_before(self, number):
        self._starts = {n: start for n, start in self._starts.items() if n >= number}

    def __iter__(self):
        if self._start_state is not None:
            self._generator.set_state(self._start_state.clone())
        skip, self._start_state, self._skip = self._skip, None, 0
        self._starts[self._next] = self._generator.get_state()
        self._next += 1
        return itertools.islice(iter(self._sampler), skip, None)

    def __len__(self):
        return len(self._sampler)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def get_buffer(dataset):
    """Return the indices of the images that a mosaic is made from, in order."""
    buffer = getattr(dataset, "buffer", None)
    return list(buffer) if isinstance(buffer, list) else None


def fill_buffer(dataset, indices):
    """Load the images again, which draws no random numbers."""
    if indices is None or not isinstance(getattr(dataset, "buffer", None), list):
        return
    dataset.buffer = []
    for number in indices:
        dataset.load_image(number)
    dataset.buffer = list(indices)


def pack_buffer(dataset):
    """Return the same as a tensor, to send it from a worker: the length first, -1 if there is no buffer."""
    import torch

    buffer = get_buffer(dataset)
    return torch.tensor([-1] if buffer is None else [len(buffer), *buffer], dtype=torch.int64, device="cpu")


def unpack_buffer(dataset, indices):
    count, *indices = indices.tolist()
    fill_buffer(dataset, None if count < 0 else indices)
