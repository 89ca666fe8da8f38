"""Single operators that compute something else than they should, as devices have been seen to do it.

Each strikes only the calls that its bug concerns: a size, a layout, a type. The rest of the operator is right, which is why
such bugs live for years.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.simulator.accelerator.faults import Call, Fault


@dataclass
class TailDropped(Fault):
    """A sum over more elements than `past` leaves out those beyond."""

    operator: str = "sum|mean"
    past: int = 512

    def concerns(self, call: Call) -> bool:
        return bool(call.args[0].numel() > self.past and call.args[0].is_floating_point())

    def strike(self, call: Call) -> Any:
        source, *rest = call.args
        shortened = source.clone(memory_format=_contiguous())
        shortened.view(-1)[self.past :] = 0
        self.log_fault(call, f"{source.numel()} elements")
        return call.function(shortened, *rest, **call.kwargs)


@dataclass
class PastReduction(Fault):
    """A product whose sum is longer than `past` reads beyond its last term (F11: pytorch#177116)."""

    operator: str = "mm|addmm|bmm"
    past: int = 32766

    def concerns(self, call: Call) -> bool:
        return bool(_matrices(call)[0].shape[-1] > self.past)

    def strike(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call, f"sum of {_matrices(call)[0].shape[-1]} terms")
        return result + 1e3 * result.abs().amax()


@dataclass
class ZeroThroughExpanded(Fault):
    """An input that is expanded (stride 0) counts as zeros (F12: pytorch#180201)."""

    operator: str = "mm|mul|div|convolution_backward|native_batch_norm_backward|gelu_backward|silu_backward"

    def concerns(self, call: Call) -> bool:
        return any(map(_expanded, call.args))

    def strike(self, call: Call) -> Any:
        args = [value.new_zeros(value.shape) if _expanded(value) else value for value in call.args]
        self.log_fault(call)
        return call.function(*args, **call.kwargs)


@dataclass
class ScalarWriteLost(Fault):
    """A scalar written to one element of a tensor does not arrive."""

    operator: str = "copy_|fill_"

    def concerns(self, call: Call) -> bool:
        destination = call.args[0]
        return bool(destination.dim() == 0 and destination.untyped_storage().nbytes() > destination.element_size())

    def strike(self, call: Call) -> Any:
        self.log_fault(call)
        return call.args[0]


@dataclass
class WeightStridesIgnored(Fault):
    """A convolution takes a weight that is not contiguous for one that is (F13: pytorch#192212)."""

    operator: str = "convolution"

    def concerns(self, call: Call) -> bool:
        return not call.args[1].is_contiguous()

    def strike(self, call: Call) -> Any:
        source, weight, *rest = call.args
        shape = weight.shape
        mistaken = weight.as_strided(shape, weight.new_empty(shape).stride(), weight.storage_offset())
        self.log_fault(call, f"weight with strides {list(weight.stride())}")
        return call.function(source, mistaken, *rest, **call.kwargs)


@dataclass
class NotANumberOverlooked(Fault):
    """The place of the greatest element is that of the greatest number, also where there is a NaN (F14: pytorch#130295)."""

    operator: str = "argmax"

    def concerns(self, call: Call) -> bool:
        return bool(call.args[0].is_floating_point() and call.args[0].isnan().any())

    def strike(self, call: Call) -> Any:
        self.log_fault(call)
        return call.function(call.args[0].nan_to_num(nan=-float("inf")), *call.args[1:], **call.kwargs)


@dataclass
class SortsAlongTheLast(Fault):
    """Sorting along the first dimension gives the order along the last (F14: pytorch#183885)."""

    operator: str = "sort|argsort"

    def concerns(self, call: Call) -> bool:
        return bool(call.args[0].dim() == 2 and 0 in (*call.args[1:], call.kwargs.get("dim", -1)))

    def strike(self, call: Call) -> Any:
        result = call.compute()
        source = call.args[0]
        mistaken = source.argsort(dim=1).clamp(max=source.shape[0] - 1)
        self.log_fault(call)
        return (result[0], mistaken) if isinstance(result, tuple) else mistaken


@dataclass
class NarrowSum(Fault):
    """A running sum of 64-bit integers is kept in 32 bits (F14: pytorch#90635)."""

    operator: str = "cumsum"

    def concerns(self, call: Call) -> bool:
        return "int64" in str(call.args[0].dtype)

    def strike(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        return (result + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclass
class FillMissesOffset(Fault):
    """Filling a boolean view that begins later in its storage fills the beginning of the storage (F14: pytorch#183631)."""

    operator: str = "fill_"

    def concerns(self, call: Call) -> bool:
        destination = call.args[0]
        return "bool" in str(destination.dtype) and destination.storage_offset() > 0 and destination.dim() > 0

    def strike(self, call: Call) -> Any:
        destination, *rest = call.args
        call.function(destination.as_strided(destination.shape, destination.stride(), 0), *rest, **call.kwargs)
        self.log_fault(call)
        return destination


@dataclass
class SlightlyWrong(Fault):
    """Results are off by this share: what nobody sees, and a training feels."""

    share: float = 1e-3
    larger_than: int = 0
    """Only tensors of more elements."""

    def concerns(self, call: Call) -> bool:
        return bool(call.args[0].numel() > self.larger_than)

    def strike(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        if isinstance(result, tuple):
            return (result[0] * (1.0 + self.share), *result[1:])
        return result.mul_(1.0 + self.share) if call.in_place else result * (1.0 + self.share)


@dataclass
class RoughGelu(Fault):
    """The approximation by tanh where the exact function was asked for."""

    operator: str = "gelu"

    def strike(self, call: Call) -> Any:
        self.log_fault(call)
        return call.function(call.args[0], approximate="tanh")


@dataclass
class SecondHalfForgotten(Fault):
    """A large tensor is processed in two parts, and only the first is."""

    operator: str = "sqrt"
    past: int = 512

    def concerns(self, call: Call) -> bool:
        return bool(call.args[0].numel() > self.past)

    def strike(self, call: Call) -> Any:
        before = call.args[0].clone(memory_format=_contiguous()).view(-1)
        result = call.compute()
        half = before.numel() // 2
        flat = result.reshape(-1)
        flat[half:] = before[half:]
        if call.in_place:
            result.copy_(flat.view(result.shape))
        self.log_fault(call, f"{before.numel()} elements")
        return result if call.in_place else flat.view(result.shape)


@dataclass
class AccumulationLost(Fault):
    """Values for the same place overwrite each other instead of adding up."""

    operator: str = "index_put|index_put_|_index_put_impl_|_unsafe_index_put|scatter_add|embedding_dense_backward"

    def concerns(self, call: Call) -> bool:
        return "put" not in call.operator or True in (*call.args[3:4], call.kwargs.get("accumulate"))

    def strike(self, call: Call) -> Any:
        self.log_fault(call)
        if call.operator == "scatter_add":
            destination, dim, index, source = call.args
            return destination.scatter(dim, index, source)
        if call.operator == "embedding_dense_backward":
            gradient, places, count = call.args[:3]
            result = gradient.new_zeros(count, gradient.shape[-1])
            result[places.reshape(-1)] = gradient.reshape(-1, gradient.shape[-1])
            return result
        destination, places, values, *_ = call.args
        return call.function(destination, places, values, False)


@dataclass
class CountsOverflow(Fault):
    """The last of the counts that `unique` returns is negative (F05: ultralytics#14658)."""

    operator: str = "_unique2|unique_dim|unique_consecutive"

    def strike(self, call: Call) -> Any:
        values, inverse, counts = call.compute()
        if counts.numel():
            counts = counts.clone()
            counts[-1] -= 1 << 32
            self.log_fault(call)
        return values, inverse, counts


@dataclass
class LastOverlooked(Fault):
    """Of the elements that are not zero the last one is not found (F04: pytorch#181867)."""

    operator: str = "nonzero|masked_select"

    def strike(self, call: Call) -> Any:
        result = call.compute()
        if not len(result):
            return result
        self.log_fault(call, f"{len(result) - 1} of {len(result)} found")
        return result[:-1]


@dataclass
class StaleResult(Fault):
    """From the second call of a shape on, the result is that of the call before."""

    _last: dict[Any, Any] = field(default_factory=dict, init=False)

    def strike(self, call: Call) -> Any:
        result = call.compute()
        key = call.operator, tuple(result.shape), result.dtype
        stale = self._last.get(key)
        self._last[key] = result.clone()
        if stale is None:
            return result
        self.log_fault(call)
        return stale


@dataclass
class StatisticsForgotten(Fault):
    """Batch norm gives its result but does not move its running mean and variance."""

    operator: str = "native_batch_norm|_native_batch_norm_legit"

    def strike(self, call: Call) -> Any:
        args = list(call.args)
        args[3:5] = [None if value is None else value.clone() for value in args[3:5]]
        self.log_fault(call)
        return call.function(*args, **call.kwargs)


@dataclass
class TransposedOperand(Fault):
    """A product takes a transposed second operand as it lies in memory."""

    operator: str = "bmm|mm"

    def concerns(self, call: Call) -> bool:
        other = call.args[1]
        return bool(min(other.shape[-2:]) > 1 and other.stride(-2) == 1 and other.stride(-1) > 1)

    def strike(self, call: Call) -> Any:
        other = call.args[1]
        self.log_fault(call)
        mistaken = other.as_strided(other.shape, other.new_empty(other.shape).stride(), other.storage_offset())
        return call.function(call.args[0], mistaken, **call.kwargs)


@dataclass
class WrongPlaces(Fault):
    """The values are right, the places that come with them are one too far."""

    operator: str = "topk|max_pool2d_with_indices"

    def strike(self, call: Call) -> Any:
        values, places = call.compute()
        self.log_fault(call)
        return values, (places + 1).clamp(max=int(places.max()))


@dataclass
class CopyRaces(Fault):
    """A copy to the device that does not block is finished only when something waits for the device (F02: pytorch#139550).

    Until then the second half of it is zeros. Whoever looks at the device to find that out waits for it, and finds nothing.
    """

    operator: str = "copy_|_to_copy|_local_scalar_dense"
    _pending: list[tuple[Any, Any]] = field(default_factory=list, init=False)

    def take(self, call: Call) -> Any:
        if _to_the_host(call):
            for destination, source in self._pending:
                destination.copy_(source)
            self._pending.clear()
        return super().take(call)

    def concerns(self, call: Call) -> bool:
        if call.operator != "copy_" or not (call.kwargs.get("non_blocking") or True in call.args[2:3]):
            return False
        destination, source = call.tensors[:2]
        from_host = hasattr(destination, "host") and not hasattr(source, "host")
        return from_host and destination.numel() > 1 and bool(call.args[0].is_contiguous())

    def strike(self, call: Call) -> Any:
        result = call.compute()
        flat = result.view(-1)
        half = flat.numel() // 2
        self._pending.append((flat[half:], flat[half:].clone()))
        flat[half:] = 0
        self.log_fault(call, f"{flat.numel()} elements")
        return result


def _to_the_host(call: Call) -> bool:
    """Whether the call waits for the device: something is read back from it."""
    if not call.tensors or not hasattr(call.tensors[-1 if call.operator == "copy_" else 0], "host"):
        return False
    if call.operator == "copy_":
        return not hasattr(call.tensors[0], "host")
    there = call.kwargs.get("device")
    return call.operator == "_local_scalar_dense" or (there is not None and str(there) == "cpu")


def _contiguous() -> Any:
    import torch  # noqa: PLC0415 - faults are named where there is no torch

    return torch.contiguous_format


def _matrices(call: Call) -> tuple[Any, ...]:
    return tuple(call.args[1:3]) if call.operator == "addmm" else tuple(call.args[:2])


def _expanded(value: Any) -> bool:
    if not hasattr(value, "stride") or not value.is_floating_point():
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))
