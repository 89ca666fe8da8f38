"""The ways in which a single operator lies. Each counts its own calls and fires at named ones, never by luck."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.simulator.accelerator import memory_model
from holdfast.simulator.fault_log import fired, step_now
from holdfast.simulator.paths import SWAP_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass
class Call:
    """One operator that is about to be computed, on the host's tensors."""

    operator: str
    """As torch names it, without its overload: "addcdiv_"."""
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: Sequence[Any]
    """The arguments as the training gave them."""

    def compute(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def struck_by(self, fault: Fault) -> Call:
        def function(*args: Any, **kwargs: Any) -> Any:
            return fault.take(replace(self, args=args, kwargs=kwargs))

        return replace(self, function=function)

    @property
    def in_place(self) -> bool:
        return self.operator.endswith("_")


@dataclass
class Fault:
    operator: str
    """Which one it strikes; several with "|" between them, all with "*"."""
    after: int = 0
    """How many calls go well first."""
    from_step: int = 0
    """Not before this step of the training."""
    calls: int = field(default=0, init=False)
    _told: bool = field(default=False, init=False)

    def take(self, call: Call) -> Any:
        if not self.concerns(call):
            return call.compute()
        self.calls += 1
        if self.calls <= self.after or step_now() < self.from_step:
            return call.compute()
        return self.strike(call)

    def concerns(self, _call: Call) -> bool:
        """Whether this call is one that the fault can strike at all."""
        return True

    def strike(self, call: Call) -> Any:
        raise NotImplementedError

    def log_fault(self, call: Call, detail: str = "") -> None:
        """Once: what comes after the first time is the same."""
        if not self._told:
            self._told = True
            fired(type(self).__name__, f"{call.operator}, call {self.calls}" + (f": {detail}" if detail else ""))


@dataclass
class ZeroResult(Fault):
    """The result is all zeros."""

    def strike(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        return result.zero_() if call.in_place else result.new_zeros(result.shape)


@dataclass
class NotANumber(Fault):
    """The result is all NaN."""

    def strike(self, call: Call) -> Any:
        result = call.compute()
        self.log_fault(call)
        return result.fill_(float("nan")) if call.in_place else result.new_full(result.shape, float("nan"))


@dataclass
class LostWrite(Fault):
    """In-place on a destination that is not contiguous writes to a temporary (F13: pytorch#118115, pytorch#165267)."""

    def concerns(self, call: Call) -> bool:
        return call.in_place and not call.args[0].is_contiguous()

    def strike(self, call: Call) -> Any:
        destination, *rest = call.args
        call.function(destination.clone(), *rest, **call.kwargs)
        self.log_fault(call, f"destination of shape {list(destination.shape)}, strides {list(destination.stride())}")
        return destination


@dataclass
class ScalarWriteSpreads(Fault):
    """A scalar written to one element also lands where scalars were written before: `x=zeros(3); x[1]=1; x[2]=3` gives
    [0, 3, 3] (F01: pytorch#122016).
    """

    operator: str = "copy_|fill_"
    _written: WeakKeyDictionary[memory_model.Allocation, list[int]] = field(
        default_factory=WeakKeyDictionary, init=False
    )

    def concerns(self, call: Call) -> bool:
        destination = call.args[0]
        size = destination.untyped_storage().nbytes()
        return destination.dim() == 0 and size > destination.element_size() and hasattr(call.tensors[0], "allocation")

    def strike(self, call: Call) -> Any:
        destination = call.args[0]
        result = call.compute()
        places = self._written.setdefault(call.tensors[0].allocation, [])
        for place in places:
            destination.as_strided((), (), place).copy_(destination)
        if places:
            self.log_fault(call, f"{len(places) + 1} elements written instead of one")
        if destination.storage_offset() not in places:
            places.append(destination.storage_offset())
        return result


@dataclass
class WrongCount(Fault):
    """Boolean indices in quick succession select one element too few (F04: pytorch#181867). Reading a value back from the
    device ends the succession.
    """

    operator: str = "index|_local_scalar_dense"
    succession: int = 2
    """From this one on, of calls with no reading in between."""
    _in_a_row: int = field(default=0, init=False)

    def concerns(self, call: Call) -> bool:
        if call.operator != "index":
            self._in_a_row = 0
            return False
        masks = [index for index in call.args[1] if index is not None]
        return len(masks) == 1 and "bool" in str(masks[0].dtype)

    def strike(self, call: Call) -> Any:
        self._in_a_row += 1
        result = call.compute()
        if self._in_a_row < self.succession or not len(result):
            return result
        self.log_fault(call, f"{len(result) - 1} of {len(result)} selected")
        return result[:-1]


@dataclass
class Leak(Fault):
    """Every call leaves memory with the driver that nobody can free (F08)."""

    size: int = 0

    def strike(self, call: Call) -> Any:
        self.log_fault(call, f"{self.size} bytes each")
        memory_model.current().leak(self.size)
        return call.compute()


@dataclass
class Slow(Fault):
    """Every call takes longer, and moves memory to swap and back: a machine that has run out of it."""

    seconds: float = 0.0
    swaps: int = 0
    """Bytes a call, as the machine will say. Nothing is swapped in truth."""
    _swapped: int = field(default=0, init=False)

    def strike(self, call: Call) -> Any:
        self.log_fault(call, f"{self.seconds} s more each")
        time.sleep(self.seconds)
        if self.swaps:
            self._swapped += self.swaps
            memory_model.write_figure(SWAP_FILE, self._swapped)
        return call.compute()


@dataclass
class Hang(Fault):
    """The call never returns: a device that waits for itself."""

    def strike(self, call: Call) -> Any:
        self.log_fault(call)
        threading.Event().wait()


@dataclass
class Abort(Fault):
    """Native code says its last words and aborts the process (F16, F25)."""

    words: Sequence[str] = ()

    def strike(self, call: Call) -> Any:
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


def computed(call: Call) -> Any:
    """The call, through whatever faults there are for its operator."""
    for fault in (*_injected.get(call.operator, ()), *_injected.get("*", ())):
        call = call.struck_by(fault)
    return call.compute()
