"""A simulated accelerator: a real `torch.device` called "sim", in pure Python, on top of CPU memory.

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import NotANumber

    accelerator.switch_on(NotANumber("addmm", after=40))
    model.to("sim")                         # trains as on the CPU until the fault fires

Without a fault, linear layers, norms and optimizers compute bit for bit the same as the CPU. Convolutions may differ in the
last digits, because gradients have a different memory layout. The device is unreliable on purpose: single operators return
wrong results, memory runs out or leaks, or the system kills the process, always at defined calls and never at random. It
needs a torch that has `_setup_privateuseone_for_python_backend`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.simulator.accelerator import faults as _faults
from holdfast.simulator.accelerator import memory_model as _memory_model

if TYPE_CHECKING:
    from holdfast.simulator.accelerator.faults import Fault
    from holdfast.simulator.accelerator.memory_model import MemoryModel

NAME = "sim"
PROBE_SHARE = 0.5


def switch_on(*faults: Fault, memory_model: MemoryModel | None = None) -> None:
    """Register the device with torch, with these faults and this memory. A later call replaces them."""
    from holdfast.simulator.accelerator import device  # noqa: PLC0415 - imports torch

    device.register(NAME)
    _raise_probe_budget()
    _faults.inject(faults)
    _memory_model.set_current(memory_model or _memory_model.MemoryModel())


def _raise_probe_budget() -> None:
    """Let the probe observe as much as it would on a real device, if Holdfast runs this training.

    The probe may use a share of the step time. Operations that take a device microseconds are a hundred times slower in
    Python, and that slows the inspection of tensors more than the training.
    """
    budget = sys.modules.get("holdfast_probe.budget")
    if budget is not None:
        budget.SHARE = PROBE_SHARE  # type: ignore[attr-defined]


def why_not() -> str | None:
    """Return why this interpreter cannot simulate an accelerator, or None if it can."""
    try:
        import torch.utils.backend_registration as registration  # noqa: PLC0415
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        import torch  # noqa: PLC0415

        return f"torch {torch.__version__} does not support devices written in Python; 2.13 does"
    return None
