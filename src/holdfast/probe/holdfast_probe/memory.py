"""Memory as the training process sees it: the device's allocator and, on Linux, the resident set size."""

import os

from .devices import is_accelerator, read_memory, read_memory_limit
from .param_names import parameters_of

SECONDS = 2.0
STEPS_BETWEEN = 32
"""After the first thousand steps, samples are also at least this many steps apart: the file of a million steps stays
small at any speed."""
FIRST_STEPS = 1000


class Memory(object):
    def __init__(self, probe):
        self.probe = probe
        self.next_at = 0.0
        self._next_step = 0
        self._device = None
        self._limit = None

    def sample(self, now):
        """Emit a sample, once `next_at` is reached. Before the first step the device is unknown."""
        probe = self.probe
        if (probe.step < self._next_step and not probe.loaders.evaluating) or probe.step == probe.first_step:
            return
        self.next_at = now + SECONDS
        if probe.step - probe.first_step >= FIRST_STEPS:
            self._next_step = probe.step + STEPS_BETWEEN
        try:
            self._emit()
        except Exception as error:
            self.next_at = float("inf")
            probe.miss("memory", "it could not be read")
            probe.failed("reading memory", error)

    def _emit(self):
        probe = self.probe
        device = self._find_device()
        fields = {"step": probe.step, "device": str(device)}
        fields.update(read_memory(probe.torch, device))
        if len(fields) > 2 and self._limit is None:
            self._limit = read_memory_limit(probe.torch, device)
        if self._limit:
            fields["limit"] = self._limit
        rss = _read_rss()
        if rss is not None:
            fields["rss"] = rss
        probe.see("memory")
        probe.emit("memory", **fields)

    def _find_device(self):
        if self._device is None or not is_accelerator(self._device):
            parameters = parameters_of(*self.probe.optimizers)
            self._device = parameters[0].device if parameters else self._device
        return self._device or self.probe.torch.device("cpu")


def _read_rss():
    """Return the resident set size, on Linux only. On other systems the supervisor samples it from outside."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
