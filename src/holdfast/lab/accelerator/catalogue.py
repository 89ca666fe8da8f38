"""All lies of single operators that an oracle has to find, and the honest devices that it must leave alone.

Each lie says in which program it strikes: in `trainings/mixture.py`, in YOLO11n (`trainings/squares.py`), or in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.lab.accelerator import faults, honest, lies

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.lab.accelerator.faults import Fault


@dataclass(frozen=True)
class Lie:
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
class Honest:
    name: str
    make: Callable[[], Fault] | None


LIES = (
    Lie("in-place writes into gaps are lost (AdamW)", ("mul_", "lerp_", "addcmul_", "addcdiv_"), ("not-written",), "F13",
        lambda: faults.LostWrite("addcmul_|addcdiv_|mul_|lerp_"), lambda: faults.LostWrite("mul_")),
    Lie("in-place writes into gaps are lost (SGD)", ("add_",), ("not-written",), "F13",
        lambda: faults.LostWrite("add_"), None, optimizer="SGD"),
    Lie("a scalar write also lands elsewhere", ("copy_", "fill_"), ("written-elsewhere",), "F01",
        faults.ScalarWriteSpreads, faults.ScalarWriteSpreads),
    Lie("a scalar write is lost", ("copy_", "fill_"), ("not-written",), "F01", lies.ScalarWriteLost, lies.ScalarWriteLost),
    Lie("boolean indices count wrongly", ("index",), ("count",), "F04", faults.WrongCount, None),
    Lie("the last element is overlooked", ("nonzero",), ("count",), "F04", None, lies.LastOverlooked),
    Lie("sums past a size drop their tail", ("sum", "mean"), ("values", "zero"), None, lies.TailDropped,
        lambda: lies.TailDropped(past=200)),
    Lie("products past a length read beyond", ("mm", "addmm", "bmm"), ("values",), "F11", lies.PastReduction,
        None),
    Lie("gradients through expanded tensors are zero", ("mm", "mul", "div"), ("zero", "values"), "F12",
        lies.ZeroThroughExpanded, lies.ZeroThroughExpanded),
    Lie("strides of a convolution's weight are ignored", ("convolution",), ("values",), "F13", lies.WeightStridesIgnored, None),
    Lie("argmax overlooks NaN", ("argmax",), ("selection",), "F14", lies.NotANumberOverlooked, None),
    Lie("argsort along the first dimension", ("sort", "argsort"), ("selection",), "F14", lies.SortsAlongTheLast, None),
    Lie("cumsum of int64 in 32 bits", ("cumsum",), ("integers",), "F14", lies.NarrowSum, None),
    Lie("fill_ of a boolean view misses its offset", ("fill_",), ("written-elsewhere", "not-written", "integers"), "F14",
        lies.FillMissesOffset, None),
    Lie("softmax is off by a thousandth", ("_softmax", "_log_softmax"), ("values",), None,
        lambda: lies.SlightlyWrong("_softmax|_log_softmax"), lambda: lies.SlightlyWrong("_softmax|_log_softmax")),
    Lie("silu is off by a thousandth", ("silu", "silu_"), ("values",), None,
        lambda: lies.SlightlyWrong("silu|silu_"), lambda: lies.SlightlyWrong("silu|silu_")),
    Lie("products are off by a thousandth", ("mm", "addmm", "bmm", "convolution"), ("values",), None,
        lambda: lies.SlightlyWrong("mm|addmm|bmm|convolution"), lambda: lies.SlightlyWrong("convolution")),
    Lie("gelu is approximated", ("gelu",), ("values",), None, lies.RoughGelu, None),
    Lie("the optimizer's square root of large tensors", ("sqrt",), ("values",), None, lies.SecondHalfForgotten,
        lies.SecondHalfForgotten),
    Lie("the optimizer's update of large tensors", ("addcdiv_", "add_"), ("not-written",), None,
        lambda: lies.SecondHalfForgotten("addcdiv_"), lambda: lies.SecondHalfForgotten("add_|addcdiv_", past=30000)),
    Lie("gradients for the same place overwrite each other", ("index_put", "index_put_", "_index_put_impl_"), ("values",), None,
        lambda: lies.AccumulationLost("index_put|index_put_|_index_put_impl_"), None),
    Lie("scatter_add overwrites", ("scatter_add",), ("values",), None, lambda: lies.AccumulationLost("scatter_add"), None),
    Lie("an embedding's gradients overwrite each other", ("embedding_dense_backward",), ("values",), None,
        lambda: lies.AccumulationLost("embedding_dense_backward"), None),
    Lie("unique's counts overflow", ("_unique2", "unique_dim", "unique_consecutive"), ("integers",), "F05", lies.CountsOverflow,
        lies.CountsOverflow),
    Lie("results of the call before", ("mm", "addmm", "convolution"), ("values", "zero"), None,
        lambda: lies.StaleResult("mm|addmm"), lambda: lies.StaleResult("convolution")),
    Lie("batch norm forgets its statistics", ("native_batch_norm",), ("not-written",), None, lies.StatisticsForgotten,
        lies.StatisticsForgotten),
    Lie("a transposed operand is taken as it lies", ("bmm", "mm"), ("values",), None, lies.TransposedOperand, lies.TransposedOperand),
    Lie("topk's places are one too far", ("topk",), ("selection",), None, lambda: lies.WrongPlaces("topk"), lambda: lies.WrongPlaces("topk")),
    Lie("max pooling's places are one too far", ("max_pool2d_with_indices",), ("selection",), None,
        lambda: lies.WrongPlaces("max_pool2d_with_indices"), lambda: lies.WrongPlaces("max_pool2d_with_indices")),
    Lie("all zeros", ("convolution", "gt_"), ("zero", "integers", "not-written"), None, lambda: faults.ZeroResult("convolution"),
        lambda: faults.ZeroResult("gt_")),
    Lie("copies race", (), (), None, lies.CopyRaces, lies.CopyRaces, race=True),
)  # fmt: skip

HONEST = (
    Honest("clean", None),
    Honest("bfloat16 arithmetic", honest.LowPrecision),
    Honest("TF32-like products", honest.LowPrecisionProducts),
    Honest("another order of sums", honest.OtherOrder),
)
