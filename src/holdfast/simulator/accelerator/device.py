"""Makes the device known to torch: its name, its module `torch.sim`, its factories."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import backend_registration

from holdfast.simulator.accelerator import memory_model
from holdfast.simulator.accelerator.tensor import SimulatedTensor, run

_registered: list[Any] = []
"""The libraries: torch forgets what they registered when they are gone."""


class SimulatedModule(backend_registration._DummyBackendModule):  # type: ignore[misc] # noqa: SLF001
    """`torch.sim`: what torch, trainers and the probe ask of a device's module."""

    def memory_allocated(self, _device: Any = None) -> int:
        return memory_model.current().allocated

    def memory_reserved(self, _device: Any = None) -> int:
        return memory_model.current().driver

    def max_memory_allocated(self, _device: Any = None) -> int:
        return memory_model.current().peak

    def reset_peak_memory_stats(self, _device: Any = None) -> None:
        memory_model.current().forget_peak()

    def get_device_properties(self, _device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name="simulated accelerator", total_memory=memory_model.current().total)

    def empty_cache(self) -> None:
        memory_model.current().empty_cache()

    def synchronize(self, _device: Any = None) -> None:
        """Everything is computed at once."""

    def set_device(self, _device: Any) -> None:
        """There is one."""

    def manual_seed(self, seed: int) -> None:
        """Random numbers are the CPU's."""

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
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_fallback, "PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for operator in _factories():
        factories.impl(operator._name.partition("::")[2], functools.partial(_fallback, operator), "PrivateUse1")  # noqa: SLF001
    _registered.extend([everything, factories])
    torch.tensor = _through_the_host(torch.tensor, name)
    torch.as_tensor = _through_the_host(torch.as_tensor, name)
    # Loaders pin batches where there is an accelerator; this one reads the host's memory anyway.
    torch.Tensor.pin_memory = lambda tensor, _device=None: tensor


def _fallback(operator: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return run(operator, args, kwargs)


def _factories() -> list[Any]:
    """Operators that make a tensor from nothing: torch's own way of composing them would resize in the device's memory."""
    found = []
    for packet_name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, packet_name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments  # noqa: SLF001
            makes = any(argument.name == "device" for argument in arguments)
            if makes and not any("Tensor" in str(argument.type) for argument in arguments):
                found.append(operator)
    return found


def _through_the_host(function: Any, name: str) -> Any:
    """`torch.tensor(data, device="sim")` fills memory from C++; here the CPU's is filled, and copied."""

    @functools.wraps(function)
    def made(data: Any, *args: Any, **options: Any) -> Any:
        if isinstance(data, (list, tuple)):
            data = [item.item() if isinstance(item, SimulatedTensor) else item for item in data]
        device = torch.device(options["device"]) if options.get("device") is not None else None
        there = isinstance(data, SimulatedTensor)
        if not there and (device is None or device.type != name):
            return function(data, *args, **options)
        options["device"] = None
        if there:
            data = data.host
        device = device or torch.device(name)
        requires_grad = options.pop("requires_grad", False)
        return function(data, *args, **options).to(device).requires_grad_(requires_grad)

    return made
