"""Control over what loaders yield: their own batches, the first batch repeated, or that batch with its inputs zeroed.

The override is installed below the probe, so the probe sees such a batch like any other. It affects only loaders that were
read for the first step, and only while gradients are enabled: a validation gets its own batches.
"""

import functools
import os
import weakref

from ..import_hooks import after_import
from .batches import MAX_BYTES, copy_batch, find_input, tensor_bytes, zero_input

PASS_THROUGH, REPEATED, ZEROED = "as it is", "again", "zeroed"
MAX_BATCHES_WITHOUT_BACKWARD = 64
"""After this many batches without a backward, the loop is not a training and would never end."""


class LoaderOverride(object):
    def __init__(self, torch):
        self._torch = torch
        self._kept = {}
        """Dataset id -> (a weak reference to it or None, the batch that it yielded for the first step)"""
        self._since_backward = 0
        self._is_recording = True
        self._pid = os.getpid()
        self.mode = PASS_THROUGH
        self.given = 0
        """The number of batches that were replaced so far."""
        self.too_large = False
        self.zero_already = False

    def install(self):
        after_import("torch.utils.data.dataloader", self._wrap_iterator)

    @property
    def has_batch(self):
        return bool(self._kept)

    def input_is_certain(self):
        return all(find_input(self._torch, batch)[1] for _, batch in self._kept.values())

    def keeps_yielding(self):
        """Return whether the loader of a framework continues after its last batch: an epoch's end would start a validation."""
        return self._torch.is_grad_enabled()

    def backward_begins(self):
        self._is_recording = False
        self._since_backward = 0

    def end(self):
        self.mode, self._kept, self._is_recording = PASS_THROUGH, {}, False

    # --- the loaders ---------------------------------------------------------------------------------------------

    def _wrap_iterator(self, module):
        iterator_class = module._BaseDataLoaderIter
        original = iterator_class.__next__
        override = self

        @functools.wraps(original)
        def __next__(iterator):  # noqa: N807 - it replaces that method
            return override._next(original, iterator)

        iterator_class.__next__ = __next__

    def _next(self, original, iterator):
        if os.getpid() != self._pid or not self._torch.is_grad_enabled():
            return original(iterator)
        dataset = getattr(iterator, "_dataset", None)
        if self.mode == PASS_THROUGH:
            batch = original(iterator)
            if self._is_recording:
                self._keep(dataset, batch)
            return batch
        kept = self._kept.get(id(dataset))
        if kept is None or (kept[0] is not None and kept[0]() is not dataset):
            return original(iterator)
        self._since_backward += 1
        if self._since_backward > MAX_BATCHES_WITHOUT_BACKWARD:
            self._since_backward = 0
            raise StopIteration
        self.given += 1
        batch = copy_batch(self._torch, kept[1])
        if self.mode == ZEROED:
            self.zero_already = zero_input(self._torch, batch)[1]
        return batch

    def _keep(self, dataset, batch):
        if tensor_bytes(self._torch, batch) > MAX_BYTES:
            self.too_large = True
            return
        try:
            reference = weakref.ref(dataset)
        except TypeError:
            reference = None
        self._kept[id(dataset)] = (reference, copy_batch(self._torch, batch))
