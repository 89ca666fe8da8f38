"""Single operators that return wrong results, as real devices have done.

Each fault affects only the calls that its bug applies to: a size, a layout, a dtype. The operator is right otherwise, which
is why such bugs survive for years.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.simulator.accelerator.faults import Call, Fault


@dataclass
class TailDropped(Fault):
    """A sum over more than `threshold` elements ignores the rest."""

    operator: str = "sum|mean"
    threshold: int = 512

    def applies_to(self, call: Call) -> bool:
        return bool(call.args[0].numel() > self.threshold and call.args[0].is_floating_point())

    def trigger(self, call: Call) -> Any:
        source, *rest = call.args
        shortened = source.clone(memory_format=_contiguous_format())
        shortened.view(-1)[self.threshold :] = 0
        self.log_fault(call, f"{source.numel()} elements")
        return call.function(shortened, *rest, **call.kwargs)


@dataclass
class PastReduction(Fault):
    """A matrix product over more than `threshold` terms reads past the last term (F11: pytorch#177116)."""

    operator: str = "mm|addmm|bmm"
    threshold: int = 32766

    def applies_to(self, call: Call) -> bool:
        return bool(_get_matrices(call)[0].shape[-1] > self.threshold)

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call, f"sum of {_get_matrices(call)[0].shape[-1]} terms")
        return result + 1e3 * result.abs().amax()


@dataclass
class ZeroThroughExpanded(Fault):
    """An expanded input (stride 0) is treated as zeros (F12: pytorch#180201)."""

    operator: str = "mm|mul|div|convolution_backward|native_batch_norm_backward|gelu_backward|silu_backward"

    def applies_to(self, call: Call) -> bool:
        return any(map(_is_expanded, call.args))

    def trigger(self, call: Call) -> Any:
        args = [value.new_zeros(value.shape) if _is_expanded(value) else value for value in call.args]
        self.log_fault(call)
        return call.function(*args, **call.kwargs)


@dataclass
class ScalarWriteLost(Fault):
    """A scalar written to one element of a tensor is lost."""

    operator: str = "copy_|fill_"

    def applies_to(self, call: Call) -> bool:
        destination = call.args[0]
        return bool(destination.dim() == 0 and destination.untyped_storage().nbytes() > destination.element_size())

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        return call.args[0]


@dataclass
class WeightStridesIgnored(Fault):
    """A convolution treats a non-contiguous weight as contiguous (F13: pytorch#192212)."""

    operator: str = "convolution"

    def applies_to(self, call: Call) -> bool:
        return not call.args[1].is_contiguous()

    def trigger(self, call: Call) -> Any:
        source, weight, *rest = call.args
        shape = weight.shape
        wrong = weight.as_strided(shape, weight.new_empty(shape).stride(), weight.storage_offset())
        self.log_fault(call, f"weight with strides {list(weight.stride())}")
        return call.function(source, wrong, *rest, **call.kwargs)


@dataclass
class NanIgnored(Fault):
    """The index of the greatest element is that of the greatest number, even if there is a NaN (F14: pytorch#130295)."""

    operator: str = "argmax"

    def applies_to(self, call: Call) -> bool:
        return bool(call.args[0].is_floating_point() and call.args[0].isnan().any())

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        return call.function(call.args[0].nan_to_num(nan=-float("inf")), *call.args[1:], **call.kwargs)


@dataclass
class SortsAlongWrongDim(Fault):
    """Sorting along the first dimension returns the order along the last (F14: pytorch#183885)."""

    operator: str = "sort|argsort"

    def applies_to(self, call: Call) -> bool:
        return bool(call.args[0].dim() == 2 and 0 in (*call.args[1:], call.kwargs.get("dim", -1)))

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        source = call.args[0]
        wrong = source.argsort(dim=1).clamp(max=source.shape[0] - 1)
        self.log_fault(call)
        return (result[0], wrong) if isinstance(result, tuple) else wrong


@dataclass
class NarrowSum(Fault):
    """A cumulative sum of 64-bit integers is computed in 32 bits (F14: pytorch#90635)."""

    operator: str = "cumsum"

    def applies_to(self, call: Call) -> bool:
        return "int64" in str(call.args[0].dtype)

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        return (result + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclass
class FillMissesOffset(Fault):
    """Filling a boolean view with a storage offset fills the beginning of the storage (F14: pytorch#183631)."""

    operator: str = "fill_"

    def applies_to(self, call: Call) -> bool:
        destination = call.args[0]
        return "bool" in str(destination.dtype) and destination.storage_offset() > 0 and destination.dim() > 0

    def trigger(self, call: Call) -> Any:
        destination, *rest = call.args
        call.function(destination.as_strided(destination.shape, destination.stride(), 0), *rest, **call.kwargs)
        self.log_fault(call)
        return destination


@dataclass
class SlightlyWrong(Fault):
    """Results are off by this fraction: too small to notice, large enough to affect a training."""

    share: float = 1e-3
    larger_than: int = 0
    """Only tensors with more elements are affected."""

    def applies_to(self, call: Call) -> bool:
        return bool(call.args[0].numel() > self.larger_than)

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        if isinstance(result, tuple):
            return (result[0] * (1.0 + self.share), *result[1:])
        return result.mul_(1.0 + self.share) if call.in_place else result * (1.0 + self.share)


@dataclass
class ApproximateGelu(Fault):
    """The tanh approximation is used although the exact function was requested."""

    operator: str = "gelu"

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        return call.function(call.args[0], approximate="tanh")


@dataclass
class SecondHalfSkipped(Fault):
    """A large tensor is processed in two parts, and the second part is skipped."""

    operator: str = "sqrt"
    threshold: int = 512

    def applies_to(self, call: Call) -> bool:
        return bool(call.args[0].numel() > self.threshold)

    def trigger(self, call: Call) -> Any:
        before = call.args[0].clone(memory_format=_contiguous_format()).view(-1)
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
    """Values for the same index overwrite each other instead of adding up."""

    operator: str = "index_put|index_put_|_index_put_impl_|_unsafe_index_put|scatter_add|embedding_dense_backward"

    def applies_to(self, call: Call) -> bool:
        return "put" not in call.operator or True in (*call.args[3:4], call.kwargs.get("accumulate"))

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        if call.operator == "scatter_add":
            destination, dim, index, source = call.args
            return destination.scatter(dim, index, source)
        if call.operator == "embedding_dense_backward":
            gradient, indices, count = call.args[:3]
            result = gradient.new_zeros(count, gradient.shape[-1])
            result[indices.reshape(-1)] = gradient.reshape(-1, gradient.shape[-1])
            return result
        destination, indices, values, *_ = call.args
        return call.function(destination, indices, values, False)


@dataclass
class CountsOverflow(Fault):
    """The last of the counts that `unique` returns is negative (F05: ultralytics#14658)."""

    operator: str = "_unique2|unique_dim|unique_consecutive"

    def trigger(self, call: Call) -> Any:
        values, inverse, counts = call.compute()
        if counts.numel():
            counts = counts.clone()
            counts[-1] -= 1 << 32
            self.log_fault(call)
        return values, inverse, counts


@dataclass
class LastElementMissed(Fault):
    """The last non-zero element is not found (F04: pytorch#181867)."""

    operator: str = "nonzero|masked_select"

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        if not len(result):
            return result
        self.log_fault(call, f"{len(result) - 1} of {len(result)} found")
        return result[:-1]


@dataclass
class StaleResult(Fault):
    """From the second call with a shape on, the result is that of the previous call."""

    _last: dict[Any, Any] = field(default_factory=dict, init=False)

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        key = call.operator, tuple(result.shape), result.dtype
        stale = self._last.get(key)
        self._last[key] = result.clone()
        if stale is None:
            return result
        self.log_fault(call)
        return stale


@dataclass
class StatisticsNotUpdated(Fault):
    """Batch norm returns its result but does not update its running mean and variance."""

    operator: str = "native_batch_norm|_native_batch_norm_legit"

    def trigger(self, call: Call) -> Any:
        args = list(call.args)
        args[3:5] = [None if value is None else value.clone() for value in args[3:5]]
        self.log_fault(call)
        return call.function(*args, **call.kwargs)


@dataclass
class TransposedOperand(Fault):
    """A product ignores the strides of a transposed second operand."""

    operator: str = "bmm|mm"

    def applies_to(self, call: Call) -> bool:
        other = call.args[1]
        return bool(min(other.shape[-2:]) > 1 and other.stride(-2) == 1 and other.stride(-1) > 1)

    def trigger(self, call: Call) -> Any:
        other = call.args[1]
        self.log_fault(call)
        wrong = other.as_strided(other.shape, other.new_empty(other.shape).stride(), other.storage_offset())
        return call.function(call.args[0], wrong, **call.kwargs)


@dataclass
class WrongIndices(Fault):
    """The values are right, but their indices are one too high."""

    operator: str = "topk|max_pool2d_with_indices"

    def trigger(self, call: Call) -> Any:
        values, indices = call.compute()
        self.log_fault(call)
        return values, (indices + 1).clamp(max=int(indices.max()))


@dataclass
class CopyRaces(Fault):
    """A non-blocking copy to the device is finished only when something waits for the device (F02: pytorch#139550).

    Until then its second half is zeros. Reading from the device to find that out waits for it, and finds nothing.
    """

    operator: str = "copy_|_to_copy|_local_scalar_dense"
    _pending: list[tuple[Any, Any]] = field(default_factory=list, init=False)

    def apply(self, call: Call) -> Any:
        if _reads_from_device(call):
            for destination, source in self._pending:
                destination.copy_(source)
            self._pending.clear()
        return super().apply(call)

    def applies_to(self, call: Call) -> bool:
        if call.operator != "copy_" or not (call.kwargs.get("non_blocking") or True in call.args[2:3]):
            return False
        destination, source = call.tensors[:2]
        from_host = hasattr(destination, "host") and not hasattr(source, "host")
        return from_host and destination.numel() > 1 and bool(call.args[0].is_contiguous())

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        flat = result.view(-1)
        half = flat.numel() // 2
        self._pending.append((flat[half:], flat[half:].clone()))
        flat[half:] = 0
        self.log_fault(call, f"{flat.numel()} elements")
        return result


def _reads_from_device(call: Call) -> bool:
    """Return whether the call waits for the device because it reads from it."""
    if not call.tensors or not hasattr(call.tensors[-1 if call.operator == "copy_" else 0], "host"):
        return False
    if call.operator == "copy_":
        return not hasattr(call.tensors[0], "host")
    device = call.kwargs.get("device")
    return call.operator == "_local_scalar_dense" or (device is not None and str(device) == "cpu")


def _contiguous_format() -> Any:
    import torch  # noqa: PLC0415 - this module is also imported without torch

    return torch.contiguous_format


def _get_matrices(call: Call) -> tuple[Any, ...]:
    return tuple(call.args[1:3]) if call.operator == "addmm" else tuple(call.args[:2])


def _is_expanded(value: Any) -> bool:
    if not hasattr(value, "stride") or not value.is_floating_point():
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))
