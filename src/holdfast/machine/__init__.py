"""What differs between macOS and Linux, behind one interface: `this_machine()` returns the current `Machine`."""

from __future__ import annotations

import sys

from holdfast.machine.base import Awake, KillCounters, Machine, ProcessFacts, SystemMemory
from holdfast.machine.power import Power

__all__ = ["Awake", "KillCounters", "Machine", "Power", "ProcessFacts", "SystemMemory", "this_machine"]


def this_machine() -> Machine:
    if sys.platform.startswith("linux"):
        from holdfast.machine.linux import LinuxMachine  # noqa: PLC0415 - only what this platform needs

        return LinuxMachine()
    if sys.platform == "darwin":
        from holdfast.machine.macos import MacMachine  # noqa: PLC0415

        return MacMachine()
    from holdfast.machine.psutil_machine import PsutilMachine  # noqa: PLC0415

    return PsutilMachine()
