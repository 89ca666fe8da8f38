"""The random state of DataLoader workers, on its way to the training and back to new workers.

Each batch carries the state of its worker after it. The iterator unwraps its batches itself: persistent workers also
serve loops that know nothing about this.
"""

import itertools
import weakref

from .rng import get_worker_rng_state, set_worker_rng_state


class BatchWithState(object):
    """A batch, and the random state of its worker after it."""

    __slots__ = ("batch", "state", "worker")

    def __init__(self, batch, state, worker):
        self.batch = batch
        self.state = state
        self.worker = worker

    def pin_memory(self, device=None):
        from torch.utils.data._utils.pin_memory import pin_memory

        pinned = pin_memory(self.batch, device) if device is not None else pin_memory(self.batch)
        return BatchWithState(pinned, self.state, self.worker)


class StatefulCollate(object):
    """The collate function of a loader, in a worker. `extra(dataset)` returns a tensor with further state of the
    worker, or None.
    """

    def __init__(self, collate, extra=None):
        self._collate = collate
        self._extra = extra

    def __call__(self, samples):
        import torch

        batch = self._collate(samples)
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return batch
        state = [get_worker_rng_state(torch)]
        if self._extra is not None:
            extra_state = self._extra(worker.dataset)
            if extra_state is not None:
                state.append(extra_state)
        return BatchWithState(batch, state, worker.id)


class ResumedWorkerInit(object):
    """A `worker_init_fn` that restores the random state of a worker. `extra(dataset, tensor)` restores its further
    state.
    """

    def __init__(self, init, states, extra=None):
        self._init = init
        self._states = states
        self._extra = extra

    def __call__(self, worker):
        import torch

        if self._init is not None:
            self._init(worker)
        state = self._states.get(worker)
        if state is None:
            return
        if self._extra is not None and len(state) > 1:
            self._extra(torch.utils.data.get_worker_info().dataset, state[1])
        set_worker_rng_state(torch, state[0])


class rotate_workers(object):  # noqa: N801 - it is used like a function
    """While active, the first batch of a new iterator goes to the worker that would have produced batch `batch`.

    Batch n belongs to worker n modulo the number of workers. Renumbering the workers would do for this pass, but they
    may outlive it.
    """

    def __init__(self, batch):
        self._batch = batch

    def __enter__(self):
        from torch.utils.data import dataloader

        self._module = dataloader
        dataloader.itertools = _RotatedItertools(self._batch)

    def __exit__(self, *_):
        self._module.itertools = itertools
        return False


class _RotatedItertools(object):
    """The itertools that torch's DataLoader sees: only the start of its cycle of workers differs."""

    def __init__(self, shift):
        self._shift = shift

    def cycle(self, items):
        items = list(items)
        shift = self._shift % len(items) if items else 0
        return itertools.cycle(items[shift:] + items[:shift])

    def __getattr__(self, name):
        return getattr(itertools, name)


def unwrap_batches(iterator, workers):
    """Make the iterator return plain batches, and store the state that came with the last batch of each worker in
    `workers`.
    """
    iterator_ref = weakref.ref(iterator)  # no reference cycle: workers exit with their iterator

    def next_data():
        self = iterator_ref()
        data = type(self)._next_data(self)
        if type(data) is BatchWithState:
            workers[data.worker] = data.state
            data = data.batch
        return data

    iterator._next_data = next_data


def finish_tasks(iterator, workers):
    """Wait until persistent workers finish their outstanding tasks, even if a pass was left early. The next pass would
    wait too.
    """
    try:
        from torch.utils.data.dataloader import _DatasetKind

        if iterator._dataset_kind != _DatasetKind.Map or iterator._shutdown:
            return  # a worker at the end of its iterable dataset no longer responds
        ready = {number: task[1] for number, task in iterator._task_info.items() if len(task) == 2}
        while iterator._tasks_outstanding > 0:
            number, data = iterator._get_data()
            iterator._tasks_outstanding -= 1
            if number in iterator._task_info:
                iterator._task_info[number] += (data,)
            ready[number] = data
        for number in sorted(ready):
            if type(ready[number]) is BatchWithState:
                workers[ready[number].worker] = ready[number].state
    except Exception:  # a worker exited: the next pass will report it
        pass
