"""Gives a program the values back that it keeps itself (`run.state`), in the objects that it has put there."""

from collections import deque

from .restore import is_array, own

_MAPPINGS, _SEQUENCES = (dict,), (list, deque)


def fill(torch, state, kept, memory):
    """What a name stands for now is filled, where it is of the same kind as then: the program may hold it elsewhere, too. `memory` is where
    the tensors of other objects lie, which have their own values already.
    """
    filling = _Filling(torch, memory)
    for name, value in kept.items():
        state[name] = filling.of(state.get(name), value)


class _Filling(object):
    def __init__(self, torch, memory):
        self._torch = torch
        self._memory = memory
        self._filled = {}
        """By its id: an object, and what it was filled with. One under two names may have been two at the snapshot."""

    def of(self, now, kept):
        """What stands for `kept` from here on: what is there now, if it can be filled."""
        if not self._fits(now, kept):
            return now if self._is_that(now, kept) else own(self._torch, kept)
        if id(now) in self._filled:
            _, same = self._filled[id(now)]
            return now if _equal(same, kept) else own(self._torch, kept)
        self._filled[id(now)] = (now, kept)
        if isinstance(now, self._torch.Tensor):
            with self._torch.no_grad():
                now.copy_(kept)
        elif isinstance(now, _MAPPINGS):
            items = [(key, self.of(now.get(key), item)) for key, item in kept.items()]
            now.clear()
            for key, item in items:
                now[key] = item
        elif isinstance(now, _SEQUENCES):
            before = list(now)
            before += [None] * (len(kept) - len(before))
            items = [self.of(*both) for both in zip(before, kept)]
            now.clear()
            now.extend(items)
        elif isinstance(now, set):
            now.clear()
            now.update(kept)
        else:
            now[...] = kept
        return now

    def _fits(self, now, kept):
        if isinstance(now, self._torch.Tensor) and isinstance(kept, self._torch.Tensor):
            return _alike(now, kept) and self._is_its_own(now)
        if is_array(now) and is_array(kept):
            return _alike(now, kept) and now.flags.writeable and getattr(now.base, "nbytes", now.nbytes) == now.nbytes
        return type(now) is type(kept) and isinstance(now, (*_MAPPINGS, *_SEQUENCES, set))

    def _is_that(self, now, kept):
        """A tensor that is a view of a model's weights, say, and was one."""
        if not isinstance(now, self._torch.Tensor) or not isinstance(kept, self._torch.Tensor) or not _alike(now, kept):
            return False
        try:
            return self._torch.equal(now.detach().cpu(), kept)
        except (RuntimeError, TypeError):
            return False

    def _is_its_own(self, tensor):
        """Whether nothing else is written to with it: no weights of a model, and no part of something larger."""
        if tensor.layout is not self._torch.strided or tensor.is_inference():
            return False
        storage = tensor.untyped_storage()
        whole = storage.nbytes() == tensor.numel() * tensor.element_size()
        return whole and storage.data_ptr() not in self._memory


def _alike(one, other):
    return one.shape == other.shape and one.dtype == other.dtype


def _equal(one, other):
    if one is other:
        return True
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # tensors and arrays in it
        return False
