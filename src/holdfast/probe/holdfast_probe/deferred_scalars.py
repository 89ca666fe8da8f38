"""Small tensors whose values are wanted, read without making the training wait.

What lives on the CPU is read at once. What lives on a device is copied there (the training may write over it), collected,
and fetched together: one synchronisation for many steps. The copy to the host keeps its dtype, and is converted here.
"""

from collections import deque
from threading import get_ident

MAX_WAITING = 4096
"""Of one device and type. Where nothing ticks, or only on a thread that is gone, nothing is fetched either."""


class DeferredScalars(object):
    def __init__(self, torch, note):
        self._torch = torch
        self._note = note
        self._waiting = {}
        self.count = 0
        """How many tensors wait on a device."""
        self.thread = None
        """The thread that trains, which is that of the clock's last tick: the only one that touches device tensors."""

    def on_training_thread(self):
        return self.thread is None or get_ident() == self.thread

    def later(self, tensor, callback):
        """`callback(values)` gets the tensor's values as a list of floats: at once, or at one of the next fetches."""
        tensor = self.local(tensor.detach())
        if tensor.is_cpu:
            callback(tensor.double().reshape(-1).tolist())
            return
        if self._capturing(tensor):
            callback([])
            return
        key = (tensor.device, tensor.dtype)
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= MAX_WAITING:
            self._note("too many values wait on a device: the oldest are dropped")
            self.count -= 1
            waiting.popleft()[1]([])
        waiting.append((tensor.clone().reshape(-1), callback))
        self.count += 1

    def fetch(self):
        """Brings everything that waits to the host; False on another thread than the training's, where it may not."""
        if not self.on_training_thread():
            return False
        waiting, self._waiting, self.count = self._waiting, {}, 0
        for entries in waiting.values():
            self._fetch_group(entries)
        return True

    @staticmethod
    def local(tensor):
        """This rank's part of a distributed tensor: reading the whole would be a collective."""
        to_local = getattr(tensor, "to_local", None)
        return tensor if to_local is None else to_local()

    def _fetch_group(self, entries):
        values = None
        try:
            if not self._capturing(entries[0][0]):
                with self._torch.no_grad():
                    values = self._torch.cat([tensor for tensor, _ in entries]).cpu().double().tolist()
        except Exception as error:
            self._note("values could not be read from the device", str(error)[:200])
        position = 0
        for tensor, callback in entries:
            size = tensor.numel()
            callback([] if values is None else values[position : position + size])
            position += size

    def _capturing(self, tensor):
        """While a CUDA graph is captured, reading would become part of the graph or break it."""
        return tensor.is_cuda and self._torch.cuda.is_current_stream_capturing()
