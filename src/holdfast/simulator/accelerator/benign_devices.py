"""Benign devices: they compute differently from the CPU but correctly, so no finding may be reported for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.simulator.accelerator.faults import Call, Fault

PRODUCTS = "mm|addmm|bmm|baddbmm|convolution|convolution_backward"
SUMS = "sum|mean|mm|bmm"
COPIES = frozenset([
    "copy_", "_to_copy", "clone", "fill_", "zero_", "zeros", "ones", "full", "arange", "cat", "stack", "index", "gather", "scatter",
    "select", "slice", "index_select", "repeat", "masked_fill", "masked_fill_", "where", "index_put_", "_local_scalar_dense",
])  # fmt: skip
"""These operators copy numbers and do not round."""


@dataclass
class LowPrecisionProducts(Fault):
    """Products round their factors to this many mantissa bits and accumulate in float32. TF32 has 10 bits."""

    operator: str = PRODUCTS
    bits: int = 10

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        return call.function(*[_round(value, self.bits) for value in call.args], **call.kwargs)


@dataclass
class LowPrecision(Fault):
    """All arithmetic is in bfloat16, regardless of the dtype: factors and results have 7 mantissa bits."""

    operator: str = "*"
    bits: int = 7

    def applies_to(self, call: Call) -> bool:
        return call.operator not in COPIES and not _is_view(call)

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        if _writes(call):
            result = call.compute()
            written = call.args[0] if isinstance(call.args[0], list) else [call.args[0]]
            for tensor in written if call.in_place else ():
                tensor.copy_(_round(tensor, self.bits))
            return result
        result = call.function(*[_round(value, self.bits) for value in call.args], **call.kwargs)
        return _round(result, self.bits)


@dataclass
class DifferentSumOrder(Fault):
    """Sums are computed in blocks, from the end, in float32."""

    operator: str = SUMS
    block: int = 24

    def applies_to(self, call: Call) -> bool:
        return bool(call.args[0].is_floating_point() and call.args[0].numel() > 1)

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        if call.operator in ("mm", "bmm"):
            return self._product(*call.args)
        source, *rest = call.args
        if rest or call.kwargs:
            flipped = source.flip(tuple(range(source.dim())))
            result = call.function(flipped, *rest, **call.kwargs)
            keeps_dims = result.dim() == source.dim()
            dims = rest[0] if rest else call.kwargs.get("dim")
            reduced = {dim % source.dim() for dim in ([dims] if isinstance(dims, int) else dims or range(source.dim()))}
            kept_dims = [
                dim if keeps_dims else dim - sum(reduced_dim < dim for reduced_dim in reduced)
                for dim in range(source.dim())
                if dim not in reduced
            ]
            return result.flip(tuple(kept_dims)) if kept_dims else result
        total = source.new_zeros(())
        for part in reversed(source.reshape(-1).split(self.block)):
            total = total + part.flip(0).sum()
        return total / source.numel() if call.operator == "mean" else total

    def _product(self, a: Any, b: Any) -> Any:
        total = None
        for start in reversed(range(0, a.shape[-1], max(self.block, a.shape[-1] // 40))):
            stop = min(a.shape[-1], start + max(self.block, a.shape[-1] // 40))
            part = a[..., start:stop] @ b[..., start:stop, :]
            total = part if total is None else total + part
        return total


def _round(value: Any, bits: int) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_round(item, bits) for item in value)
    if not hasattr(value, "untyped_storage") or "float32" not in str(value.dtype) or not value.numel():
        return value
    import torch  # noqa: PLC0415 - this module is also imported without torch

    dropped = 23 - bits
    integers = value.detach().clone().view(torch.int32)
    rounded = ((integers + (1 << (dropped - 1)) - 1 + ((integers >> dropped) & 1)) >> dropped) << dropped
    return torch.where(value.isfinite(), rounded.view(torch.float32), value)


def _is_view(call: Call) -> bool:
    schema = getattr(call.function, "_schema", None)
    return (
        schema is not None and not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)
    )


def _writes(call: Call) -> bool:
    schema = getattr(call.function, "_schema", None)
    return schema is not None and (schema.is_mutable or call.operator == "native_batch_norm")
