"""The device's tensor: a wrapper on device "sim" around a CPU tensor that contains the numbers.

Everything below autograd arrives at `run`: operators with such a tensor through `__torch_dispatch__`, and operators that
only name the device (`torch.zeros(3, device="sim")`) through a boxed fallback that `device.py` registers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

import torch

from holdfast.simulator.accelerator.faults import Call, compute_with_faults
from holdfast.simulator.accelerator.memory_model import Allocation

NAME = "sim"
_allocations: WeakValueDictionary[int, Allocation] = WeakValueDictionary()
"""The address of the host's storage -> its allocation."""
_operators: dict[Any, tuple[str, bool]] = {}
"""Operator -> its name, and whether it writes to an argument."""


class SimulatedTensor(torch.Tensor):  # type: ignore[misc] # torch's types are not read
    host: torch.Tensor
    allocation: Allocation

    # The overrides are the methods below; everything else goes straight to the dispatcher.
    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001

    @staticmethod
    def __new__(cls: type[SimulatedTensor], host: torch.Tensor) -> SimulatedTensor:  # noqa: PYI034 - nothing inherits from it
        if torch.is_inference_mode_enabled():  # there a view of an ordinary tensor must be an ordinary tensor
            with torch.inference_mode(False):
                return cls._make_wrapper(host)
        return cls._make_wrapper(host)

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host
        address = host.untyped_storage()._cdata  # noqa: SLF001
        allocation = _allocations.get(address)
        if allocation is None:
            allocation = _allocations[address] = Allocation(host.untyped_storage().nbytes())
        self.allocation = allocation

    @classmethod
    def _make_wrapper(cls, host: torch.Tensor) -> SimulatedTensor:
        tensor: SimulatedTensor = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - the only way to create a wrapper
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device(NAME, 0),
        )
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(operator, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{self.host!r}.to({str(self.device)!r})"

    # --- what C++ would do with the device's memory --------------------------------------------------------------

    def tolist(self) -> Any:
        return self.host.tolist()

    def untyped_storage(self) -> Any:
        """Return the storage, which all views share, as on a real device."""
        return self.host.untyped_storage()

    def new_tensor(self, data: Any, **options: Any) -> Any:
        options.setdefault("dtype", self.dtype)
        requires_grad = options.pop("requires_grad", False)
        device = options.pop("device", None) or self.device
        return torch.tensor(data, **options).to(device).requires_grad_(requires_grad)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_lists_to_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_lists_to_tensors(index), value)

    @property
    def data(self) -> Any:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        torch.Tensor.data.__set__(self, other)
        self.host, self.allocation = other.host, other.allocation

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copy._is_param = True  # noqa: SLF001 - as nn.Parameter marks a wrapper
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Pickle as a CPU tensor, rebuilt by torch's own functions, so that `weights_only` can load it."""
        if getattr(self, "_is_param", False):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, OrderedDict())  # noqa: SLF001
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor  # noqa: SLF001
        return rebuild, (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)


def _lists_to_tensors(index: Any) -> Any:
    """Convert lists of numbers to index tensors: C++ would build them in the device's memory."""
    if isinstance(index, list):
        return torch.tensor(index)
    if isinstance(index, tuple):
        return tuple(torch.tensor(part) if isinstance(part, list) else part for part in index)
    return index


def run(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operator on the host's tensors with the faults applied, and wrap the result as device tensors."""
    name, writes = _operators.get(operator) or _inspect_operator(operator)
    simulated = [value for value in (*args, *kwargs.values()) if isinstance(value, SimulatedTensor)]
    host_args = tuple([_to_host(value) for value in args])
    host_kwargs = {key: _to_host(value) for key, value in kwargs.items()}
    device = kwargs.get("device")
    on_device = device is None or torch.device(device).type == NAME
    if device is not None and on_device:
        host_kwargs["device"] = torch.device("cpu")
    result = compute_with_faults(Call(name, operator, host_args, host_kwargs, args))
    if not writes:
        return _to_device(result) if on_device else result
    for tensor in simulated:
        if tensor.shape != tensor.host.shape or tensor.stride() != tensor.host.stride():
            tensor.data = SimulatedTensor(tensor.host)
    return _to_device(result, {id(tensor.host): tensor for tensor in simulated})


def _inspect_operator(operator: Any) -> tuple[str, bool]:
    schema = operator._schema  # noqa: SLF001
    _operators[operator] = found = (schema.name.partition("::")[2], schema.is_mutable)
    return found


def _to_host(value: Any) -> Any:
    if isinstance(value, SimulatedTensor):
        return value.host
    if isinstance(value, (list, tuple)):
        return type(value)([_to_host(item) for item in value])
    return value


def _to_device(value: Any, written: dict[int, SimulatedTensor] | None = None) -> Any:
    """Wrap tensors for the device. A tensor in `written` was written in place and is returned as the same object."""
    if isinstance(value, torch.Tensor):
        original = written.get(id(value)) if written else None
        return SimulatedTensor(value) if original is None else original
    if isinstance(value, (list, tuple)):
        return type(value)([_to_device(item, written) for item in value])
    return value
