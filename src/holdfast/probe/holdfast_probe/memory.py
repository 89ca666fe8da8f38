"""Memory as the training's own process sees it: what the device's allocator holds, and the resident set where that is
a plain read.
"""

import os

SECONDS = 2.0
STEPS_BETWEEN = 32
"""After the first thousand steps, a sample needs this many steps too: a million steps stay small at any speed."""
FREE_STEPS = 1000


class Memory(object):
    def __init__(self, probe):
        self.probe = probe
        self.next_at = 0.0
        self._next_step = 0
        self._device = None
        self._limit = None

    def sample(self, now):
        """At a step or a loader fetch, once `next_at` is reached. Before the first step the device is unknown."""
        probe = self.probe
        if (probe.step < self._next_step and not probe.loaders.evaluating) or probe.step == probe.first_step:
            return
        self.next_at = now + SECONDS
        if probe.step - probe.first_step >= FREE_STEPS:
            self._next_step = probe.step + STEPS_BETWEEN
        try:
            self._emit()
        except Exception as error:
            self.next_at = float("inf")
            probe.see("memory", "not seen: it could not be read")
            probe.failed("reading memory", error)

    def _emit(self):
        probe = self.probe
        device = self._device_of_training()
        fields = {"step": probe.step, "device": str(device)}
        fields.update(_device_memory(probe.torch, device))
        if len(fields) > 2 and self._limit is None:
            self._limit = _device_limit(probe.torch, device)
        if self._limit:
            fields["limit"] = self._limit
        resident = _resident()
        if resident is not None:
            fields["rss"] = resident
        probe.see("memory")
        probe.emit("memory", **fields)

    def _device_of_training(self):
        if self._device is None or self._device.type == "cpu":
            for optimizer in self.probe.optimizers:
                for group in optimizer.param_groups:
                    for parameter in group["params"][:1]:
                        self._device = parameter.device
                        return self._device
        return self._device or self.probe.torch.device("cpu")


def _device_memory(torch, device):
    if device.type in ("cpu", "meta"):
        return {}
    module = getattr(torch, device.type, None)
    if device.type == "mps":
        return {"allocated": module.current_allocated_memory(), "driver": module.driver_allocated_memory()}
    readers = {"allocated": "memory_allocated", "reserved": "memory_reserved", "peak": "max_memory_allocated"}
    return {name: getattr(module, reader)(device) for name, reader in readers.items() if hasattr(module, reader)}


def _device_limit(torch, device):
    """What the device can hold in all; 0 where it does not say. Asked once."""
    module = getattr(torch, device.type, None)
    try:
        if device.type == "mps":
            return int(module.recommended_max_memory())
        return int(module.mem_get_info(device)[1])
    except Exception:
        return 0


def _resident():
    """Linux only: elsewhere the supervisor samples it from outside."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
