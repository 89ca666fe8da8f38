"""What loaders yield: as it is, the first batch again and again, or that batch with its inputs zeroed.

It stands under the probe, which sees such a batch as it sees any. Only loaders that were read for the first step are touched,
and only while gradients are on: a validation gets its own.
"""

import functools
import os
import weakref

from ..import_hooks import after_import
from .batches import MAX_VALUE, copied, input_of, size_of, zero_input

AS_IT_IS, AGAIN, ZEROED = "as it is", "again", "zeroed"
PATIENCE = 64
"""So many batches without a backward between them: this is no training, and would never end."""


class LoaderOverride(object):
    def __init__(self, torch):
        self._torch = torch
        self._kept = {}
        """id of a dataset -> (a weak reference to it or None, the batch that it gave for the first step)"""
        self._since_backward = 0
        self._keeping = True
        self._pid = os.getpid()
        self.mode = AS_IT_IS
        self.given = 0
        """Batches that were given in the place of others, so far."""
        self.too_large = False
        self.zero_already = False
        self.endless = True
        """Ultralytics' loaders go on for ever: an epoch's end would be a validation."""

    def install(self):
        after_import("torch.utils.data.dataloader", self._watch)
        after_import("ultralytics.data.build", self._watch_ultralytics)

    @property
    def has_batch(self):
        return bool(self._kept)

    def input_is_certain(self):
        return all(input_of(self._torch, batch)[1] for _, batch in self._kept.values())

    def backward_begins(self):
        self._keeping = False
        self._since_backward = 0

    def end(self):
        self.mode, self._kept, self._keeping = AS_IT_IS, {}, False

    # --- the loaders ---------------------------------------------------------------------------------------------

    def _watch(self, module):
        iterator_class = module._BaseDataLoaderIter
        original = iterator_class.__next__
        loading = self

        @functools.wraps(original)
        def __next__(iterator):  # noqa: N807 - it becomes that method
            return loading._next(original, iterator)

        iterator_class.__next__ = __next__

    def _watch_ultralytics(self, module):
        loader_class = getattr(module, "InfiniteDataLoader", None)
        if loader_class is None:
            return
        original, loading = loader_class.__iter__, self

        @functools.wraps(original)
        def __iter__(loader):  # noqa: N807 - it becomes that method
            for batch in original(loader):
                yield batch
            while loading.endless and loading._torch.is_grad_enabled() and hasattr(loader, "iterator"):
                yield next(loader.iterator)

        loader_class.__iter__ = __iter__

    def _next(self, original, iterator):
        if os.getpid() != self._pid or not self._torch.is_grad_enabled():
            return original(iterator)
        dataset = getattr(iterator, "_dataset", None)
        if self.mode == AS_IT_IS:
            batch = original(iterator)
            if self._keeping:
                self._keep(dataset, batch)
            return batch
        kept = self._kept.get(id(dataset))
        if kept is None or (kept[0] is not None and kept[0]() is not dataset):
            return original(iterator)
        self._since_backward += 1
        if self._since_backward > PATIENCE:
            self._since_backward = 0
            raise StopIteration
        self.given += 1
        batch = copied(self._torch, kept[1])
        if self.mode == ZEROED:
            self.zero_already = zero_input(self._torch, batch)[1]
        return batch

    def _keep(self, dataset, batch):
        if size_of(self._torch, batch) > MAX_VALUE:
            self.too_large = True
            return
        try:
            reference = weakref.ref(dataset)
        except TypeError:
            reference = None
        self._kept[id(dataset)] = (reference, copied(self._torch, batch))
