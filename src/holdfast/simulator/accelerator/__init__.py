"""A simulated accelerator: a real `torch.device` called "sim", in pure Python, over the memory of the CPU.

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import NotANumber

    accelerator.switch_on(NotANumber("addmm", after=40))
    model.to("sim")                         # trains as on the CPU until the fault fires

Without a fault, linear layers, norms and optimizers compute bit for bit what the CPU does; convolutions may differ in the
last digits, because gradients are laid out differently. It exists to be unreliable on purpose: single operators lie, memory runs out, leaks, or is reaped by the system, all at
named calls and never by luck. Needs a torch that has `_setup_privateuseone_for_python_backend`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.simulator.accelerator import faults as _faults
from holdfast.simulator.accelerator import memory_model as _ledger

if TYPE_CHECKING:
    from holdfast.simulator.accelerator.faults import Fault
    from holdfast.simulator.accelerator.memory_model import MemoryModel

NAME = "sim"
PROBE_SHARE = 0.5


def switch_on(*faults: Fault, memory_model: MemoryModel | None = None) -> None:
    """Make the device known to torch, with these faults and this memory; a later call replaces them."""
    from holdfast.simulator.accelerator import device  # noqa: PLC0415 - imports torch

    device.register(NAME)
    _give_the_probe_time()
    _faults.inject(faults)
    _ledger.use(memory_model or _ledger.MemoryModel())


def _give_the_probe_time() -> None:
    """Under Holdfast, let the probe see what it would see on a real device.

    It lives on a share of step time. What a device does in microseconds is a hundred times slower in Python, and looking
    at tensors suffers more from that than training on them does.
    """
    budget = sys.modules.get("holdfast_probe.budget")
    if budget is not None:
        budget.SHARE = PROBE_SHARE  # type: ignore[attr-defined]


def why_not() -> str | None:
    """Why this interpreter cannot simulate an accelerator; None where it can."""
    try:
        import torch.utils.backend_registration as registration  # noqa: PLC0415
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        import torch  # noqa: PLC0415

        return f"torch {torch.__version__} cannot have a device in Python; 2.13 can"
    return None
