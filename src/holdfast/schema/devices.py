"""The devices that a training can run on: one table with one entry per kind of device.

To add a kind of device, add an entry to `DEVICES`. Inside the training process, `holdfast_probe/devices.py` calls the functions of the
device's torch module; it needs a change only if they have unusual names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

_NOT_NAMED = ("", "none", "auto")
_INDICES = re.compile(r"-?\d{1,9}(,-?\d{1,9})*", re.ASCII)


@dataclass(frozen=True)
class DeviceKind:
    name: str
    """The type of the `torch.device`; empty if no device is known."""
    title: str = ""
    """The name in messages."""
    is_accelerator: bool = True
    """False for the CPU."""
    shares_memory: bool = False
    """Whether the accelerator has no memory of its own: what it allocates is taken from the machine's main memory."""
    has_index: bool = True
    """Whether a machine can have several of them, which are told apart by an index."""
    is_default_of_indices: bool = False
    """Whether an index alone, such as `0` or `0,1`, means this kind."""
    aliases: tuple[str, ...] = ()
    """Other names in command lines."""
    hidden_by: str = ""
    """The environment variable that hides all of them from torch if it is set to an empty value."""
    out_of_memory: tuple[str, ...] = ()
    """The words before `out of memory` in the error message of torch."""

    @property
    def is_known(self) -> bool:
        return self.name in DEVICES

    @property
    def pattern(self) -> str:
        """A regular expression for its names in a plan."""
        indices = r"\d+(,\d+)*"
        named = f"{re.escape(self.name)}(:{indices})?" if self.has_index else re.escape(self.name)
        return f"{named}|-1|{indices}" if self.is_default_of_indices else named


class Device(NamedTuple):
    """One or several devices of a kind."""

    kind: DeviceKind
    indices: tuple[int, ...] = ()
    """Empty for the first one, however it is written."""

    @property
    def names(self) -> list[str]:
        """Their names in torch."""
        return (
            [f"{self.kind.name}:{index}" for index in self.indices or (0,)] if self.kind.has_index else [self.kind.name]
        )


DEVICES = {
    kind.name: kind
    for kind in (
        DeviceKind("cpu", "the CPU", is_accelerator=False, has_index=False),
        DeviceKind("mps", "an Apple GPU", shares_memory=True, has_index=False, out_of_memory=("MPS backend",)),
        DeviceKind(
            "cuda",
            "an NVIDIA GPU",
            is_default_of_indices=True,
            aliases=("gpu",),
            hidden_by="CUDA_VISIBLE_DEVICES",
            out_of_memory=("CUDA", "HIP"),
        ),
        DeviceKind("xpu", "an Intel GPU", out_of_memory=("XPU",)),
        DeviceKind("npu", "an Ascend NPU"),
        DeviceKind("hpu", "a Gaudi accelerator"),
        DeviceKind("sim", "the simulated accelerator"),
    )
}
NO_DEVICE = Device(DeviceKind("", is_accelerator=False, has_index=False))


def parse_device(value: Any) -> Device:
    """Return the device that a setting names: `0`, `[0, 1]`, `cuda:1` and `gpu` are all `cuda`. `auto` and None name none.

    A kind that the table does not contain is an accelerator of which nothing is known.
    """
    text = "" if value is None else re.sub(r"\s", "", str(value)).strip("[]()").lower()
    name, separator, numbers = text.partition(":")
    if name in _NOT_NAMED:
        return NO_DEVICE
    if not separator and _INDICES.fullmatch(name):
        name, numbers = next(kind.name for kind in DEVICES.values() if kind.is_default_of_indices), name
    elif separator and not _INDICES.fullmatch(numbers):
        return Device(DeviceKind(text, has_index=False))
    unknown = DeviceKind(name, has_index=bool(separator))
    kind = next((kind for kind in DEVICES.values() if name == kind.name or name in kind.aliases), unknown)
    indices = tuple(int(number) for number in numbers.split(",") if number.isdigit())
    return Device(kind, () if indices == (0,) else indices)


def device_kind(value: Any) -> str:
    """Return the name of the kind of a device: `cpu`, `mps`, `cuda`, ...; empty if the value names no device."""
    return parse_device(value).kind.name


def hide_accelerators() -> dict[str, str]:
    """Return the environment variables for a process that must only see the CPU."""
    return {kind.hidden_by: "" for kind in DEVICES.values() if kind.hidden_by}
