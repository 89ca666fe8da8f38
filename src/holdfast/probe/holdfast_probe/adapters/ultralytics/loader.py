"""The loader of an Ultralytics training: one iterator for all epochs, which can be recreated in the middle of an epoch.

The order of a pass is drawn from the loader's generator when the pass is first requested; workers request it some batches before it
begins. So the generator state at that moment is saved for each pass. A resumed pass draws the same order again and skips the used batches.
Augmentation draws from the random state of the process and mixes in images from a buffer of the last loaded ones. With workers, both
live in the workers and are returned with each batch.
"""

import itertools

from ...snapshots.worker_state import BatchWithState, ResumedDataset, StatefulCollate, turn_of


class ResumableLoader(object):
    def __init__(self, torch, loader):
        self._torch = torch
        self.loader = loader
        self._generator = loader.generator
        self._order = Order(loader.batch_sampler.sampler, loader.generator)
        loader.batch_sampler.sampler = self._order
        self._pass = 0
        """The pass of the iterator that is being read."""
        self._read = 0
        """How many of its batches were read."""
        self._taken = 0
        """How many batches were read in all passes."""
        self._born = None
        """The generator state before the iterator was created: workers are seeded from it."""
        self._workers = {}
        self._kept = None
        self._skipped = 0
        self._follow_reset()

    def _follow_reset(self):
        """Track `reset`: Ultralytics creates a new iterator when the augmentation changes."""
        original = self.loader.reset

        def reset():
            self._kept = None
            original()

        self.loader.reset = reset

    # --- reading -------------------------------------------------------------------------------------------------

    def next(self):
        loader = self.loader
        if loader.iterator is None:
            self._make()
        if self._read >= len(loader):
            # Not earlier: if a pass ends with a full batch, its sampler draws once more when the next batch is requested.
            self._pass, self._read = self._pass + 1, 0
            self._order.forget_before(self._pass)
        batch = next(loader.iterator)
        if type(batch) is BatchWithState:
            self._workers[self._taken % loader.num_workers] = batch.drawn
            batch = batch.batch
        self._taken += 1
        self._read += 1
        return batch

    def _make(self):
        if self._kept is not None:
            self._make_again(self._kept)
            return
        self._born = self._generator.get_state()
        self._pass = self._taken = 0
        self._read, self._skipped = self._skipped, 0
        self._workers = {}
        self._order.begin(0, None, self._read)
        self.loader.iterator = self._carrying()

    # --- going on ------------------------------------------------------------------------------------------------

    def state(self):
        """Return the state between two batches."""
        if self._kept is not None:
            return self._kept
        return {
            "made": self.loader.iterator is not None,
            "born": self._born,
            "now": self._generator.get_state(),
            "pass": self._pass,
            "start": self._order.start_of(self._pass),
            "read": self._read,
            "taken": self._taken,
            "workers": dict(self._workers),
            "buffer": buffer_of(self.loader.dataset),
        }

    def go_on(self, kept):
        """Load a state. The iterator is created when it is first read: a training that resumes with a validation may never read it."""
        self._generator.set_state(kept["now"].clone())
        fill_buffer(self.loader.dataset, kept["buffer"])
        self._kept = kept if kept["made"] else None

    def begin_at(self, batch):
        """Start a new order at this batch, if the loader has changed."""
        self._skipped = batch

    def _make_again(self, kept):
        self._kept = None
        self._born, self._taken = kept["born"], kept["taken"]
        self._pass, self._read = kept["pass"], kept["read"]
        self._workers = dict(kept["workers"])
        now = self._generator.get_state()
        self._generator.set_state(kept["born"].clone())
        self._order.begin(self._pass, kept["start"], self._read)
        self.loader.iterator = self._carrying(continuing=True)
        if not self.loader.num_workers:  # workers have drawn the order already, which sets the generator
            self._generator.set_state(now)

    def _carrying(self, continuing=False):
        """Return an iterator whose workers send their random state with each batch."""
        loader = self.loader
        if not loader.num_workers:
            return loader._get_iterator()
        collate, init = loader.collate_fn, loader.worker_init_fn
        loader.collate_fn = StatefulCollate(collate, carried_buffer)
        if continuing:
            loader.worker_init_fn = ResumedDataset(init, self._workers, fill_carried_buffer)
        try:
            with turn_of(self._taken):
                return loader._get_iterator()
        finally:
            loader.collate_fn, loader.worker_init_fn = collate, init


class Order(object):
    """A batch sampler that remembers the generator state before each pass."""

    def __init__(self, sampler, generator):
        self._sampler = sampler
        self._generator = generator
        self._starts = {}
        self._next = 0
        self._set_back = None
        self._skip = 0

    def begin(self, number, start=None, skip=0):
        """Set the number of the next pass; with `start`, draw it from that state, and skip `skip` batches of it."""
        self._starts = {}
        self._next, self._set_back, self._skip = number, start, skip

    def start_of(self, number):
        """Return the generator state before a pass; None if it is not drawn yet."""
        return self._starts.get(number)

    def forget_before(self, number):
        self._starts = {n: start for n, start in self._starts.items() if n >= number}

    def __iter__(self):
        if self._set_back is not None:
            self._generator.set_state(self._set_back.clone())
        skip, self._set_back, self._skip = self._skip, None, 0
        self._starts[self._next] = self._generator.get_state()
        self._next += 1
        return itertools.islice(iter(self._sampler), skip, None)

    def __len__(self):
        return len(self._sampler)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def buffer_of(dataset):
    """Return the indices of the images that a mosaic is made from, in order."""
    buffer = getattr(dataset, "buffer", None)
    return list(buffer) if isinstance(buffer, list) else None


def fill_buffer(dataset, numbers):
    """Load the images again, which draws no random numbers."""
    if numbers is None or not isinstance(getattr(dataset, "buffer", None), list):
        return
    dataset.buffer = []
    for number in numbers:
        dataset.load_image(number)
    dataset.buffer = list(numbers)


def carried_buffer(dataset):
    """Return the same as a tensor, to send it from a worker: the length first, -1 if there is no buffer."""
    import torch

    buffer = buffer_of(dataset)
    return torch.tensor([-1] if buffer is None else [len(buffer), *buffer], dtype=torch.int64, device="cpu")


def fill_carried_buffer(dataset, numbers):
    count, *numbers = numbers.tolist()
    fill_buffer(dataset, None if count < 0 else numbers)
