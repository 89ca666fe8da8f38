"""Registration of the device with torch: its name, its module `torch.sim`, its factories."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import backend_registration

from holdfast.simulator.accelerator import memory_model
from holdfast.simulator.accelerator.tensor import SimulatedTensor, run

_registered: list[Any] = []
"""References to the libraries: torch removes their registrations when they are deleted."""


class SimulatedModule(backend_registration._DummyBackendModule):  # type: ignore[misc] # noqa: SLF001
    """`torch.sim`: the functions that torch, trainers and the probe call on a device's module."""

    def memory_allocated(self, _device: Any = None) -> int:
        return memory_model.current().allocated

    def memory_reserved(self, _device: Any = None) -> int:
        return memory_model.current().driver

    def max_memory_allocated(self, _device: Any = None) -> int:
        return memory_model.current().peak

    def reset_peak_memory_stats(self, _device: Any = None) -> None:
        memory_model.current().reset_peak()

    def get_device_properties(self, _device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name="simulated accelerator", total_memory=memory_model.current().total)

    def empty_cache(self) -> None:
        memory_model.current().empty_cache()

    def synchronize(self, _device: Any = None) -> None:
        """Do nothing: every operator is computed immediately."""

    def set_device(self, _device: Any) -> None:
        """Do nothing: there is only one device."""

    def manual_seed(self, seed: int) -> None:
        """Do nothing: random numbers come from the CPU."""

    def get_rng_state(self, _device: Any = None) -> Any:
        return torch.get_rng_state()

    def set_rng_state(self, state: Any, _device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[Any]:
        return [torch.float16, torch.bfloat16]


def register(name: str) -> None:
    if _registered:
        return
    backend_registration._setup_privateuseone_for_python_backend(name, backend_module=SimulatedModule())  # noqa: SLF001
    fallback_library = torch.library.Library("_", "IMPL")
    fallback_library.fallback(_fallback, "PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for operator in _factories():
        factories.impl(operator._name.partition("::")[2], functools.partial(_fallback, operator), "PrivateUse1")  # noqa: SLF001
    _registered.extend([fallback_library, factories])
    torch.tensor = _build_on_host(torch.tensor, name)
    torch.as_tensor = _build_on_host(torch.as_tensor, name)
    # Loaders pin batches if there is an accelerator. This one reads the host's memory anyway.
    torch.Tensor.pin_memory = lambda tensor, _device=None: tensor
    atexit.register(_wait_for_autograd)


def _wait_for_autograd() -> None:
    """Wait until the other threads are idle, for a second or so at most. Linux only.

    The autograd thread of a device releases its last tensors after `backward` has returned. Here they are Python objects:
    if Python shut down first, the thread would abort the process.
    """
    idle = 0
    with contextlib.suppress(OSError):
        for _ in range(500):
            time.sleep(0.002)  # releases the GIL, so that a thread that waits for it continues
            idle = idle + 1 if _others_are_asleep() else 0
            if idle == 3:
                return


def _others_are_asleep() -> bool:
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)


def _fallback(operator: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return run(operator, args, kwargs)


def _factories() -> list[Any]:
    """Return the operators that create a tensor without an input tensor: torch's composite versions would resize device memory."""
    operators = []
    for packet_name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, packet_name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments  # noqa: SLF001
            has_device = any(argument.name == "device" for argument in arguments)
            if has_device and not any("Tensor" in str(argument.type) for argument in arguments):
                operators.append(operator)
    return operators


def _build_on_host(function: Any, name: str) -> Any:
    """Wrap a function so that it builds a tensor on the CPU and copies it: `torch.tensor(data, device="sim")` would fill
    memory from C++.
    """

    @functools.wraps(function)
    def build(data: Any, *args: Any, **options: Any) -> Any:
        if isinstance(data, (list, tuple)):
            data = [item.item() if isinstance(item, SimulatedTensor) else item for item in data]
        device = torch.device(options["device"]) if options.get("device") is not None else None
        is_simulated = isinstance(data, SimulatedTensor)
        if not is_simulated and (device is None or device.type != name):
            return function(data, *args, **options)
        options["device"] = None
        if is_simulated:
            data = data.host
        device = device or torch.device(name)
        requires_grad = options.pop("requires_grad", False)
        return function(data, *args, **options).to(device).requires_grad_(requires_grad)

    return build
