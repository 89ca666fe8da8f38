"""Values of small tensors, read without making the training wait.

Tensors on the CPU are read immediately. Tensors on a device are copied on that device (the training may overwrite
them), collected, and fetched together: one synchronization for many steps. The copy to the host keeps its dtype and is
converted there.
"""

from collections import deque
from threading import get_ident

MAX_WAITING = 4096
"""Limit per device and dtype. Nothing is fetched if no steps are counted, or only on a thread that has exited."""


class DeferredScalars(object):
    def __init__(self, torch, note):
        self._torch = torch
        self._note = note
        self._waiting = {}
        self.count = 0
        """Number of tensors that wait on a device."""
        self.thread = None
        """The thread that made the last step of the primary optimizer. Only this thread touches device tensors."""

    def on_training_thread(self):
        return self.thread is None or get_ident() == self.thread

    def later(self, tensor, callback):
        """Call `callback(values)` with the tensor's values as a list of floats, now or at one of the next fetches."""
        tensor = self.local(tensor.detach())
        if tensor.is_cpu:
            callback(tensor.double().reshape(-1).tolist())
            return
        if self._is_capturing(tensor):
            callback([])
            return
        key = (tensor.device, tensor.dtype)
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= MAX_WAITING:
            self._note("too many values are waiting on a device: the oldest are dropped")
            self.count -= 1
            waiting.popleft()[1]([])
        waiting.append((tensor.clone().reshape(-1), callback))
        self.count += 1

    def fetch(self):
        """Copy all waiting values to the host. Return False on other threads, where this is not allowed."""
        if not self.on_training_thread():
            return False
        waiting, self._waiting, self.count = self._waiting, {}, 0
        for entries in waiting.values():
            self._fetch_group(entries)
        return True

    @staticmethod
    def local(tensor):
        """Return this rank's shard of a distributed tensor: reading the whole tensor would be a collective."""
        to_local = getattr(tensor, "to_local", None)
        return tensor if to_local is None else to_local()

    def _fetch_group(self, entries):
        values = None
        try:
            if not self._is_capturing(entries[0][0]):
                with self._torch.no_grad():
                    values = self._torch.cat([tensor for tensor, _ in entries]).cpu().double().tolist()
        except Exception as error:
            self._note("values could not be read from the device", str(error)[:200])
        position = 0
        for tensor, callback in entries:
            size = tensor.numel()
            callback([] if values is None else values[position : position + size])
            position += size

    def _is_capturing(self, tensor):
        """Return True while a CUDA graph is captured: reading would become part of the graph or break it."""
        return tensor.is_cuda and self._torch.cuda.is_current_stream_capturing()
