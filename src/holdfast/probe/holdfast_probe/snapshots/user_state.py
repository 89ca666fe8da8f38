"""Restores the values that a program stores in `run.state`, in place in the objects that it put there."""

from collections import deque

from .restore import is_array, own

_MAPPINGS, _SEQUENCES = (dict,), (list, deque)


def fill(torch, state, kept, memory):
    """Fill the current object of each name in place if it has the same type as the saved one: the program may have other references to it.
    `memory` contains the storage addresses of other objects, which are already restored.
    """
    filling = _Filling(torch, memory)
    for name, value in kept.items():
        state[name] = filling.of(state.get(name), value)


class _Filling(object):
    def __init__(self, torch, memory):
        self._torch = torch
        self._memory = memory
        self._filled = {}
        """Each filled object and its content, by id. An object with two names may have been two objects at the snapshot."""

    def of(self, now, kept):
        """Return what replaces `kept` from now on: the current object if it can be filled."""
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
        """Return whether a tensor already has the saved value, such as a view of the weights of a model."""
        if not isinstance(now, self._torch.Tensor) or not isinstance(kept, self._torch.Tensor) or not _alike(now, kept):
            return False
        try:
            return self._torch.equal(now.detach().cpu(), kept)
        except (RuntimeError, TypeError):
            return False

    def _is_its_own(self, tensor):
        """Return whether writing to a tensor changes nothing else: neither the weights of a model nor a larger tensor."""
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
    except (RuntimeError, ValueError):  # it contains tensors or arrays
        return False
