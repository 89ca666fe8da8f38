"""Faults of single operators. Each fault counts its own calls and fires at defined ones, never at random."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.simulator.accelerator import memory_model
from holdfast.simulator.fault_log import current_step, record_fault
from holdfast.simulator.paths import SWAP_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass
class Call:
    """One operator call that is about to be computed on the host's tensors."""

    operator: str
    """Torch's name without the overload: "addcdiv_"."""
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: Sequence[Any]
    """The arguments as the training passed them."""

    def compute(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def with_fault(self, fault: Fault) -> Call:
        def function(*args: Any, **kwargs: Any) -> Any:
            return fault.apply(replace(self, args=args, kwargs=kwargs))

        return replace(self, function=function)

    @property
    def in_place(self) -> bool:
        return self.operator.endswith("_")


@dataclass
class Fault:
    operator: str
    """The affected operator; several are separated by "|", and "*" means all."""
    after: int = 0
    """The number of correct calls before the fault fires."""
    from_step: int = 0
    """The first step of the training in which the fault may fire."""
    calls: int = field(default=0, init=False)
    _is_logged: bool = field(default=False, init=False)

    def apply(self, call: Call) -> Any:
        if not self.applies_to(call):
            return call.compute()
        self.calls += 1
        if self.calls <= self.after or current_step() < self.from_step:
            return call.compute()
        return self.trigger(call)

    def applies_to(self, _call: Call) -> bool:
        """Return whether the fault can affect this call at all."""
        return True

    def trigger(self, call: Call) -> Any:
        raise NotImplementedError

    def log_fault(self, call: Call, detail: str = "") -> None:
        """Log the first time the fault fires."""
        if not self._is_logged:
            self._is_logged = True
            record_fault(type(self).__name__, f"{call.operator}, call {self.calls}" + (f": {detail}" if detail else ""))


@dataclass
class ZeroResult(Fault):
    """The result is all zeros."""

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        return result.zero_() if call.in_place else result.new_zeros(result.shape)


@dataclass
class NotANumber(Fault):
    """The result is all NaN."""

    def trigger(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        return result.fill_(float("nan")) if call.in_place else result.new_full(result.shape, float("nan"))


@dataclass
class LostWrite(Fault):
    """In-place operators on a non-contiguous tensor write to a temporary (F13: pytorch#118115, pytorch#165267)."""

    def applies_to(self, call: Call) -> bool:
        return call.in_place and not call.args[0].is_contiguous()

    def trigger(self, call: Call) -> Any:
        destination, *rest = call.args
        call.function(destination.clone(), *rest, **call.kwargs)
        self.log_fault(call, f"destination of shape {list(destination.shape)}, strides {list(destination.stride())}")
        return destination


@dataclass
class ScalarWriteSpreads(Fault):
    """A scalar written to one element also overwrites elements that were written before: `x=zeros(3); x[1]=1; x[2]=3`
    gives [0, 3, 3] (F01: pytorch#122016).
    """

    operator: str = "copy_|fill_"
    _written: WeakKeyDictionary[memory_model.Allocation, list[int]] = field(
        default_factory=WeakKeyDictionary, init=False
    )

    def applies_to(self, call: Call) -> bool:
        destination = call.args[0]
        size = destination.untyped_storage().nbytes()
        return destination.dim() == 0 and size > destination.element_size() and hasattr(call.tensors[0], "allocation")

    def trigger(self, call: Call) -> Any:
        destination = call.args[0]
        result = call.compute()
        indices = self._written.setdefault(call.tensors[0].allocation, [])
        for index in indices:
            destination.as_strided((), (), index).copy_(destination)
        if indices:
            self.log_fault(call, f"{len(indices) + 1} elements written instead of one")
        if destination.storage_offset() not in indices:
            indices.append(destination.storage_offset())
        return result


@dataclass
class WrongCount(Fault):
    """Boolean indices in quick succession select one element too few (F04: pytorch#181867). Reading a value from the device
    ends the succession.
    """

    operator: str = "index|_local_scalar_dense"
    succession: int = 2
    """The fault fires from this call on in a succession without a read in between."""
    _in_a_row: int = field(default=0, init=False)

    def applies_to(self, call: Call) -> bool:
        if call.operator != "index":
            self._in_a_row = 0
            return False
        masks = [index for index in call.args[1] if index is not None]
        return len(masks) == 1 and "bool" in str(masks[0].dtype)

    def trigger(self, call: Call) -> Any:
        self._in_a_row += 1
        result = call.compute()
        if self._in_a_row < self.succession or not len(result):
            return result
        self.log_fault(call, f"{len(result) - 1} of {len(result)} selected")
        return result[:-1]


@dataclass
class Leak(Fault):
    """Every call leaks memory in the driver that cannot be freed (F08)."""

    size: int = 0

    def trigger(self, call: Call) -> Any:
        self.log_fault(call, f"{self.size} bytes each")
        memory_model.current().leak(self.size)
        return call.compute()


@dataclass
class Slow(Fault):
    """Every call takes longer and swaps memory, like on a machine that has run out of memory."""

    seconds: float = 0.0
    swaps: int = 0
    """Bytes per call that the fake machine reports as swapped. Nothing is really swapped."""
    _swapped: int = field(default=0, init=False)

    def trigger(self, call: Call) -> Any:
        self.log_fault(call, f"{self.seconds} s longer each")
        time.sleep(self.seconds)
        if self.swaps:
            self._swapped += self.swaps
            memory_model.write_figure(SWAP_FILE, self._swapped)
        return call.compute()


@dataclass
class Hang(Fault):
    """The call never returns, as on a device that deadlocks."""

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        threading.Event().wait()


@dataclass
class Abort(Fault):
    """Native code prints an error message and aborts the process (F16, F25)."""

    words: Sequence[str] = ()

    def trigger(self, call: Call) -> Any:
        self.log_fault(call)
        sys.stderr.write("".join(f"{line}\n" for line in self.words))
        sys.stderr.flush()
        os.abort()


_injected: dict[str, list[Fault]] = {}


def inject(faults: Iterable[Fault]) -> None:
    _injected.clear()
    for fault in faults:
        for operator in fault.operator.split("|"):
            _injected.setdefault(operator, []).append(fault)


def compute_with_faults(call: Call) -> Any:
    """Compute the call with all faults of its operator applied."""
    for fault in (*_injected.get(call.operator, ()), *_injected.get("*", ())):
        call = call.with_fault(fault)
    return call.compute()
