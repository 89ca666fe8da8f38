"""Restores the values that a program stores in `run.state`, in place in the objects that it put there."""

from collections import deque

from .restore import clone_tensors, is_array

_MAPPINGS, _SEQUENCES = (dict,), (list, deque)


def restore_user_state(torch, state, saved, memory):
    """Fill the current object of each name in place if it has the same type as the saved one: the program may have
    other references to it. `memory` contains the storage addresses of other objects, which are already restored.
    """
    filler = _Filler(torch, memory)
    for name, value in saved.items():
        state[name] = filler.fill(state.get(name), value)


class _Filler(object):
    def __init__(self, torch, memory):
        self._torch = torch
        self._memory = memory
        self._filled = {}
        """Each filled object and its content, by id. An object with two names may have been two objects at the
        snapshot.
        """

    def fill(self, now, saved):
        """Return what replaces `saved` from now on: the current object if it can be filled."""
        if not self._can_fill(now, saved):
            return now if self._is_equal_tensor(now, saved) else clone_tensors(self._torch, saved)
        if id(now) in self._filled:
            _, content = self._filled[id(now)]
            return now if _is_equal(content, saved) else clone_tensors(self._torch, saved)
        self._filled[id(now)] = (now, saved)
        if isinstance(now, self._torch.Tensor):
            with self._torch.no_grad():
                now.copy_(saved)
        elif isinstance(now, _MAPPINGS):
            items = [(key, self.fill(now.get(key), item)) for key, item in saved.items()]
            now.clear()
            for key, item in items:
                now[key] = item
        elif isinstance(now, _SEQUENCES):
            before = list(now)
            before += [None] * (len(saved) - len(before))
            items = [self.fill(*pair) for pair in zip(before, saved)]
            now.clear()
            now.extend(items)
        elif isinstance(now, set):
            now.clear()
            now.update(saved)
        else:
            now[...] = saved
        return now

    def _can_fill(self, now, saved):
        if isinstance(now, self._torch.Tensor) and isinstance(saved, self._torch.Tensor):
            return _is_alike(now, saved) and self._has_own_storage(now)
        if is_array(now) and is_array(saved):
            return (
                _is_alike(now, saved) and now.flags.writeable and getattr(now.base, "nbytes", now.nbytes) == now.nbytes
            )
        return type(now) is type(saved) and isinstance(now, (*_MAPPINGS, *_SEQUENCES, set))

    def _is_equal_tensor(self, now, saved):
        """Return whether a tensor already has the saved value, such as a view of the weights of a model."""
        if (
            not isinstance(now, self._torch.Tensor)
            or not isinstance(saved, self._torch.Tensor)
            or not _is_alike(now, saved)
        ):
            return False
        try:
            return self._torch.equal(now.detach().cpu(), saved)
        except (RuntimeError, TypeError):
            return False

    def _has_own_storage(self, tensor):
        """Return whether writing to a tensor changes nothing else: no weights of a model, no larger tensor."""
        if tensor.layout is not self._torch.strided or tensor.is_inference():
            return False
        storage = tensor.untyped_storage()
        whole = storage.nbytes() == tensor.numel() * tensor.element_size()
        return whole and storage.data_ptr() not in self._memory


def _is_alike(one, other):
    return one.shape == other.shape and one.dtype == other.dtype


def _is_equal(one, other):
    if one is other:
        return True
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # it contains tensors or arrays
        return False
