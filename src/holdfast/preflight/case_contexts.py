"""Recorded contexts for the cases of checks: machines and interpreters, among them a Mac."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.machine.base import SystemMemory
from holdfast.machine.keep_awake import CannotKeepAwake, NothingSleeps
from holdfast.machine.power import Power
from holdfast.machine.psutil_machine import PsutilMachine
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.interpreter import Interpreter, Reply, Torch
from holdfast.schema.units import GIB

if TYPE_CHECKING:
    from holdfast.machine.base import Awake


@dataclass(frozen=True)
class RecordedMachine(PsutilMachine):
    total: int = 16 * GIB
    available: int = 10 * GIB
    swap: int = 0
    pressure: str | None = None
    supply: Power = field(default_factory=Power)
    cannot_keep_awake: str = ""

    def memory(self) -> SystemMemory:
        return SystemMemory(
            self.total, self.available, self.swap, None, self.total, "physical memory", pressure=self.pressure
        )

    def power(self) -> Power:
        return self.supply

    def keep_awake(self) -> Awake:
        return (
            CannotKeepAwake(self.cannot_keep_awake)
            if self.cannot_keep_awake
            else NothingSleeps("this is a recorded machine")
        )


def mac(
    *,
    torch: str = "2.14.0",
    macos: str = "26.4",
    chip: str = "Apple M4 Pro",
    device: str | None = "mps",
    machine: RecordedMachine | None = None,
    packages: dict[str, str] | None = None,
    facts: dict[str, Any] | None = None,
    **context: Any,
) -> CheckContext:
    have = {"torch": torch, "torchvision": "0.29.0", "numpy": "2.3.1", **(packages or {})}
    known: dict[str, Any] = {
        "executable": "/Users/me/venv/bin/python",
        "python": "3.11.9",
        "platform": f"macOS-{macos}-arm64-arm-64bit",
        "macos": macos,
        "machine": "arm64",
        "chip": chip,
        "packages": have,
        "torch": Torch(version=torch, mps_built=True, devices=["mps", "cpu"], threads=8),
        "torchvision": "loads",
        "openmp": {"torch": ["/Users/me/venv/lib/python3.11/site-packages/torch/lib/libomp.dylib"]},
        **(facts or {}),
    }
    return _make_context(Interpreter(**known), device, machine, context)


def linux(
    *,
    torch: str = "2.13.0+cpu",
    device: str | None = "cpu",
    machine: RecordedMachine | None = None,
    packages: dict[str, str] | None = None,
    facts: dict[str, Any] | None = None,
    **context: Any,
) -> CheckContext:
    have = {"torch": torch, "torchvision": "0.28.0", "numpy": "2.3.1", **(packages or {})}
    known: dict[str, Any] = {
        "executable": "/home/me/venv/bin/python",
        "python": "3.11.9",
        "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
        "machine": "x86_64",
        "packages": have,
        "torch": Torch(version=torch, threads=8),
        "torchvision": "loads",
        "openmp": {"torch": ["/home/me/venv/lib/python3.11/site-packages/torch/lib/libgomp.so.1"]},
        **(facts or {}),
    }
    return _make_context(Interpreter(**known), device, machine, context)


def _make_context(
    python: Interpreter, device: str | None, machine: RecordedMachine | None, more: dict[str, Any]
) -> CheckContext:
    reply = more.pop("reply", Reply())
    return CheckContext(
        **{
            "cwd": Path("/"),
            "machine": machine or RecordedMachine(),
            "environment": {},
            "interpreter": python,
            "device": device,
            "run_python": lambda *_: reply,
            "free_disk": lambda _: 100 * GIB,
            "cores": 8,
            **more,
        }
    )
