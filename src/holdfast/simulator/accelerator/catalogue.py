"""All faults of single operators that the operator check must find, and the benign devices that it must not report.

Each fault fires in `trainings/mixture.py`, in YOLO11n (`trainings/squares.py`), or in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.simulator.accelerator import benign_devices, faults, op_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.simulator.accelerator.faults import Fault


@dataclass(frozen=True)
class OpFault:
    name: str
    operators: tuple[str, ...]
    """The operators that may be reported: any of them and no others."""
    kinds: tuple[str, ...]
    """The kinds of findings that may be reported."""
    known: str | None
    """The id of the matching signature, if any."""
    plain: Callable[[], Fault] | None
    """The fault for the plain loop, or None if it cannot fire there."""
    yolo: Callable[[], Fault] | None
    optimizer: str = "AdamW"
    """The optimizer of the plain loop."""
    race: bool = False
    """Whether it is a race: waiting for each operator hides it, so only whole steps can find it."""


@dataclass(frozen=True)
class BenignDevice:
    name: str
    make: Callable[[], Fault] | None


OP_FAULTS = (
    OpFault("in-place writes to non-contiguous tensors are lost (AdamW)", ("mul_", "lerp_", "addcmul_", "addcdiv_"), ("not-written",), "F13",
        lambda: faults.LostWrite("addcmul_|addcdiv_|mul_|lerp_"), lambda: faults.LostWrite("mul_")),
    OpFault("in-place writes to non-contiguous tensors are lost (SGD)", ("add_",), ("not-written",), "F13",
        lambda: faults.LostWrite("add_"), None, optimizer="SGD"),
    OpFault("a scalar write also overwrites other elements", ("copy_", "fill_"), ("written-elsewhere",), "F01",
        faults.ScalarWriteSpreads, faults.ScalarWriteSpreads),
    OpFault("a scalar write is lost", ("copy_", "fill_"), ("not-written",), "F01", op_faults.ScalarWriteLost, op_faults.ScalarWriteLost),
    OpFault("boolean indices return wrong counts", ("index",), ("count",), "F04", faults.WrongCount, None),
    OpFault("the last element is missed", ("nonzero",), ("count",), "F04", None, op_faults.LastElementMissed),
    OpFault("large sums drop their tail", ("sum", "mean"), ("values", "zero"), None, op_faults.TailDropped,
        lambda: op_faults.TailDropped(threshold=200)),
    OpFault("long products read out of bounds", ("mm", "addmm", "bmm"), ("values",), "F11", op_faults.PastReduction,
        None),
    OpFault("gradients through expanded tensors are zero", ("mm", "mul", "div"), ("zero", "values"), "F12",
        op_faults.ZeroThroughExpanded, op_faults.ZeroThroughExpanded),
    OpFault("strides of a convolution's weight are ignored", ("convolution",), ("values",), "F13", op_faults.WeightStridesIgnored, None),
    OpFault("argmax ignores NaN", ("argmax",), ("selection",), "F14", op_faults.NanIgnored, None),
    OpFault("argsort along the first dimension", ("sort", "argsort"), ("selection",), "F14", op_faults.SortsAlongWrongDim, None),
    OpFault("cumsum of int64 in 32 bits", ("cumsum",), ("integers",), "F14", op_faults.NarrowSum, None),
    OpFault("fill_ of a boolean view misses its offset", ("fill_",), ("written-elsewhere", "not-written", "integers"), "F14",
        op_faults.FillMissesOffset, None),
    OpFault("softmax is off by a thousandth", ("_softmax", "_log_softmax"), ("values",), None,
        lambda: op_faults.SlightlyWrong("_softmax|_log_softmax"), lambda: op_faults.SlightlyWrong("_softmax|_log_softmax")),
    OpFault("silu is off by a thousandth", ("silu", "silu_"), ("values",), None,
        lambda: op_faults.SlightlyWrong("silu|silu_"), lambda: op_faults.SlightlyWrong("silu|silu_")),
    OpFault("products are off by a thousandth", ("mm", "addmm", "bmm", "convolution"), ("values",), None,
        lambda: op_faults.SlightlyWrong("mm|addmm|bmm|convolution"), lambda: op_faults.SlightlyWrong("convolution")),
    OpFault("gelu is approximated", ("gelu",), ("values",), None, op_faults.ApproximateGelu, None),
    OpFault("the optimizer's square root of large tensors", ("sqrt",), ("values",), None, op_faults.SecondHalfSkipped,
        op_faults.SecondHalfSkipped),
    OpFault("the optimizer's update of large tensors", ("addcdiv_", "add_"), ("not-written",), None,
        lambda: op_faults.SecondHalfSkipped("addcdiv_"), lambda: op_faults.SecondHalfSkipped("add_|addcdiv_", threshold=30000)),
    OpFault("gradients for the same index overwrite each other", ("index_put", "index_put_", "_index_put_impl_"), ("values",), None,
        lambda: op_faults.AccumulationLost("index_put|index_put_|_index_put_impl_"), None),
    OpFault("scatter_add overwrites", ("scatter_add",), ("values",), None, lambda: op_faults.AccumulationLost("scatter_add"), None),
    OpFault("an embedding's gradients overwrite each other", ("embedding_dense_backward",), ("values",), None,
        lambda: op_faults.AccumulationLost("embedding_dense_backward"), None),
    OpFault("unique's counts overflow", ("_unique2", "unique_dim", "unique_consecutive"), ("integers",), "F05", op_faults.CountsOverflow,
        op_faults.CountsOverflow),
    OpFault("results of the previous call", ("mm", "addmm", "convolution"), ("values", "zero"), None,
        lambda: op_faults.StaleResult("mm|addmm"), lambda: op_faults.StaleResult("convolution")),
    OpFault("batch norm does not update its statistics", ("native_batch_norm",), ("not-written",), None, op_faults.StatisticsNotUpdated,
        op_faults.StatisticsNotUpdated),
    OpFault("strides of a transposed operand are ignored", ("bmm", "mm"), ("values",), None, op_faults.TransposedOperand, op_faults.TransposedOperand),
    OpFault("topk's indices are one too high", ("topk",), ("selection",), None, lambda: op_faults.WrongIndices("topk"), lambda: op_faults.WrongIndices("topk")),
    OpFault("max pooling's indices are one too high", ("max_pool2d_with_indices",), ("selection",), None,
        lambda: op_faults.WrongIndices("max_pool2d_with_indices"), lambda: op_faults.WrongIndices("max_pool2d_with_indices")),
    OpFault("all zeros", ("convolution", "gt_"), ("zero", "integers", "not-written"), None, lambda: faults.ZeroResult("convolution"),
        lambda: faults.ZeroResult("gt_")),
    OpFault("copies race", (), (), None, op_faults.CopyRaces, op_faults.CopyRaces, race=True),
)  # fmt: skip

BENIGN_DEVICES = (
    BenignDevice("clean", None),
    BenignDevice("bfloat16 arithmetic", benign_devices.LowPrecision),
    BenignDevice("TF32-like products", benign_devices.LowPrecisionProducts),
    BenignDevice("sums in a different order", benign_devices.DifferentSumOrder),
)
