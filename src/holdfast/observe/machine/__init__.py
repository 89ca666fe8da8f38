"""What differs between macOS and Linux, behind one seam: `this_machine()` gives the `Machine` that we run on."""

from __future__ import annotations

import sys

from holdfast.observe.machine.power import Power
from holdfast.observe.machine.seam import Awake, KillCounters, Machine, ProcessFacts, SystemMemory

__all__ = ["Awake", "KillCounters", "Machine", "Power", "ProcessFacts", "SystemMemory", "this_machine"]


def this_machine() -> Machine:
    if sys.platform.startswith("linux"):
        from holdfast.observe.machine.linux import LinuxMachine  # noqa: PLC0415 - only what this platform needs

        return LinuxMachine()
    if sys.platform == "darwin":
        from holdfast.observe.machine.macos import MacMachine  # noqa: PLC0415

        return MacMachine()
    from holdfast.observe.machine.plain import PlainMachine  # noqa: PLC0415

    return PlainMachine()
