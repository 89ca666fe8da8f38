"""All lies of single operators that an operator check has to find, and the honest devices that it must leave alone.

Each lie says in which program it strikes: in `trainings/mixture.py`, in YOLO11n (`trainings/squares.py`), or in both.
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
    named: tuple[str, ...]
    """The operators that have to be named, any of them and no other."""
    kinds: tuple[str, ...]
    """What may be said of them."""
    known: str | None
    """The signature that fits, where one does."""
    plain: Callable[[], Fault] | None
    """For the plain loop; None where that does not meet it."""
    yolo: Callable[[], Fault] | None
    optimizer: str = "AdamW"
    """Of the plain loop."""
    race: bool = False
    """Hidden from whoever waits for each operator: found by whole steps only."""


@dataclass(frozen=True)
class BenignDevice:
    name: str
    make: Callable[[], Fault] | None


OP_FAULTS = (
    OpFault("in-place writes into gaps are lost (AdamW)", ("mul_", "lerp_", "addcmul_", "addcdiv_"), ("not-written",), "F13",
        lambda: faults.LostWrite("addcmul_|addcdiv_|mul_|lerp_"), lambda: faults.LostWrite("mul_")),
    OpFault("in-place writes into gaps are lost (SGD)", ("add_",), ("not-written",), "F13",
        lambda: faults.LostWrite("add_"), None, optimizer="SGD"),
    OpFault("a scalar write also lands elsewhere", ("copy_", "fill_"), ("written-elsewhere",), "F01",
        faults.ScalarWriteSpreads, faults.ScalarWriteSpreads),
    OpFault("a scalar write is lost", ("copy_", "fill_"), ("not-written",), "F01", op_faults.ScalarWriteLost, op_faults.ScalarWriteLost),
    OpFault("boolean indices count wrongly", ("index",), ("count",), "F04", faults.WrongCount, None),
    OpFault("the last element is overlooked", ("nonzero",), ("count",), "F04", None, op_faults.LastOverlooked),
    OpFault("sums past a size drop their tail", ("sum", "mean"), ("values", "zero"), None, op_faults.TailDropped,
        lambda: op_faults.TailDropped(past=200)),
    OpFault("products past a length read beyond", ("mm", "addmm", "bmm"), ("values",), "F11", op_faults.PastReduction,
        None),
    OpFault("gradients through expanded tensors are zero", ("mm", "mul", "div"), ("zero", "values"), "F12",
        op_faults.ZeroThroughExpanded, op_faults.ZeroThroughExpanded),
    OpFault("strides of a convolution's weight are ignored", ("convolution",), ("values",), "F13", op_faults.WeightStridesIgnored, None),
    OpFault("argmax overlooks NaN", ("argmax",), ("selection",), "F14", op_faults.NotANumberOverlooked, None),
    OpFault("argsort along the first dimension", ("sort", "argsort"), ("selection",), "F14", op_faults.SortsAlongTheLast, None),
    OpFault("cumsum of int64 in 32 bits", ("cumsum",), ("integers",), "F14", op_faults.NarrowSum, None),
    OpFault("fill_ of a boolean view misses its offset", ("fill_",), ("written-elsewhere", "not-written", "integers"), "F14",
        op_faults.FillMissesOffset, None),
    OpFault("softmax is off by a thousandth", ("_softmax", "_log_softmax"), ("values",), None,
        lambda: op_faults.SlightlyWrong("_softmax|_log_softmax"), lambda: op_faults.SlightlyWrong("_softmax|_log_softmax")),
    OpFault("silu is off by a thousandth", ("silu", "silu_"), ("values",), None,
        lambda: op_faults.SlightlyWrong("silu|silu_"), lambda: op_faults.SlightlyWrong("silu|silu_")),
    OpFault("products are off by a thousandth", ("mm", "addmm", "bmm", "convolution"), ("values",), None,
        lambda: op_faults.SlightlyWrong("mm|addmm|bmm|convolution"), lambda: op_faults.SlightlyWrong("convolution")),
    OpFault("gelu is approximated", ("gelu",), ("values",), None, op_faults.RoughGelu, None),
    OpFault("the optimizer's square root of large tensors", ("sqrt",), ("values",), None, op_faults.SecondHalfForgotten,
        op_faults.SecondHalfForgotten),
    OpFault("the optimizer's update of large tensors", ("addcdiv_", "add_"), ("not-written",), None,
        lambda: op_faults.SecondHalfForgotten("addcdiv_"), lambda: op_faults.SecondHalfForgotten("add_|addcdiv_", past=30000)),
    OpFault("gradients for the same place overwrite each other", ("index_put", "index_put_", "_index_put_impl_"), ("values",), None,
        lambda: op_faults.AccumulationLost("index_put|index_put_|_index_put_impl_"), None),
    OpFault("scatter_add overwrites", ("scatter_add",), ("values",), None, lambda: op_faults.AccumulationLost("scatter_add"), None),
    OpFault("an embedding's gradients overwrite each other", ("embedding_dense_backward",), ("values",), None,
        lambda: op_faults.AccumulationLost("embedding_dense_backward"), None),
    OpFault("unique's counts overflow", ("_unique2", "unique_dim", "unique_consecutive"), ("integers",), "F05", op_faults.CountsOverflow,
        op_faults.CountsOverflow),
    OpFault("results of the call before", ("mm", "addmm", "convolution"), ("values", "zero"), None,
        lambda: op_faults.StaleResult("mm|addmm"), lambda: op_faults.StaleResult("convolution")),
    OpFault("batch norm forgets its statistics", ("native_batch_norm",), ("not-written",), None, op_faults.StatisticsForgotten,
        op_faults.StatisticsForgotten),
    OpFault("a transposed operand is taken as it lies", ("bmm", "mm"), ("values",), None, op_faults.TransposedOperand, op_faults.TransposedOperand),
    OpFault("topk's places are one too far", ("topk",), ("selection",), None, lambda: op_faults.WrongPlaces("topk"), lambda: op_faults.WrongPlaces("topk")),
    OpFault("max pooling's places are one too far", ("max_pool2d_with_indices",), ("selection",), None,
        lambda: op_faults.WrongPlaces("max_pool2d_with_indices"), lambda: op_faults.WrongPlaces("max_pool2d_with_indices")),
    OpFault("all zeros", ("convolution", "gt_"), ("zero", "integers", "not-written"), None, lambda: faults.ZeroResult("convolution"),
        lambda: faults.ZeroResult("gt_")),
    OpFault("copies race", (), (), None, op_faults.CopyRaces, op_faults.CopyRaces, race=True),
)  # fmt: skip

BENIGN_DEVICES = (
    BenignDevice("clean", None),
    BenignDevice("bfloat16 arithmetic", benign_devices.LowPrecision),
    BenignDevice("TF32-like products", benign_devices.LowPrecisionProducts),
    BenignDevice("another order of sums", benign_devices.OtherOrder),
)
