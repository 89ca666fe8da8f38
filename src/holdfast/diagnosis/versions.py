"""Versions and devices, as far as a record contains them: pure comparisons for bugs that only some versions have.

A version that is not recorded is None, and None never matches: a rule then reports a possibility, not a fact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.frameworks import all_frameworks
from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.diagnosis.run_state import RunState

Version = tuple[int, ...]

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_MACOS = re.compile(r"^macos-(\d+(?:\.\d+)*)", re.IGNORECASE)


class Versions(NamedTuple):
    torch: Version | None = None
    macos: Version | None = None
    packages: Mapping[str, Version] = {}
    """Versions of other packages, by the name of their distribution."""


@dataclass(frozen=True)
class Range:
    """The versions from the first one with a bug up to, but not including, the first one with the fix."""

    first: Version
    fixed: Version

    def __contains__(self, version: Version | None) -> bool:
        return version is not None and self.first <= version < self.fixed


ANY_MACOS = Range((12,), (99,))


@dataclass(frozen=True)
class KnownFault:
    """A bug of released versions that crashes a training, or silently makes its results wrong."""

    id: str
    what: str
    remedy: str
    sources: str
    severity: Literal["warn", "fatal"] = "warn"
    """Fatal if it affects every detector; a warning if it needs certain shapes or bad luck."""
    torch: Range | None = None
    macos: Range | None = ANY_MACOS
    packages: Mapping[str, Range] = field(default_factory=dict)
    on_mps: bool = True
    """Only Apple's GPU is affected, not the CPU of the same machine."""
    chips: tuple[str, ...] = ()
    """The affected chips, as prefixes of their names; empty: all."""
    variable: str | None = None
    """An environment variable that avoids the bug if it is 1 before torch is imported."""

    def affects(self, versions: Versions) -> bool:
        """Return whether every version that the bug depends on is known and in range."""
        wanted = (
            (self.torch, versions.torch),
            (self.macos, versions.macos),
            *((range_, versions.packages.get(name)) for name, range_ in self.packages.items()),
        )
        return all(found in range_ for range_, found in wanted if range_ is not None)


KNOWN_FAULTS = (
    KnownFault(
        id="scalar-writes-lost",
        what="macOS 14.4 with torch 2.2 loses scalar writes on MPS: losses are exactly 0",
        remedy="install torch 2.3 or newer",
        sources="pytorch#122016, pytorch#123385, ultralytics#9113, ultralytics#9933",
        severity="fatal",
        torch=Range((2, 2), (2, 3)),
        macos=Range((14, 4), (14, 5)),
    ),
    KnownFault(
        id="matmul-reads-too-far",
        what="torch up to 2.13 reads out of bounds in matrix products over 32767 or more elements on M1 and M2: gradients "
        "are thousands of times too large",
        remedy="install torch 2.14 or newer, or set PYTORCH_MPS_PREFER_METAL=1 before torch is imported",
        sources="pytorch#177116, pytorch#183535",
        torch=Range((2, 0), (2, 14)),
        chips=("Apple M1", "Apple M2"),
        variable="PYTORCH_MPS_PREFER_METAL",
    ),
    KnownFault(
        id="in-place-writes-lost",
        what="torch before 2.4 loses the optimizer's writes (addcmul_, addcdiv_) to non-contiguous weights on MPS: these "
        "weights never change",
        remedy="install torch 2.4 or newer",
        sources="pytorch#118115, pytorch#165267",
        torch=Range((2, 0), (2, 4)),
    ),
    KnownFault(
        id="expanded-gradients-wrong",
        what="macOS 15 to 26.2 can compute zero or corrupt gradients through expanded tensors on MPS",
        remedy="update macOS to 26.3 or newer, or call .contiguous() on expanded tensors",
        sources="pytorch#180201",
        macos=Range((15,), (26, 3)),
    ),
    KnownFault(
        id="counts-overflow",
        what="torch 2.3 can miscount the labels of a batch on MPS (`unique`): it fails with `negative dimension`, at random",
        remedy="install a newer torch",
        sources="ultralytics#14658, ultralytics/hub#591",
        torch=Range((2, 3), (2, 4)),
    ),
    KnownFault(
        id="backward-view-incompatible",
        what="torch 2.5 to 2.7 cannot compute the backward pass of convolutions on channels-last input on MPS",
        remedy="install torch 2.8 or newer, or do not use channels_last",
        sources="pytorch#142344, pytorch#143196, ultralytics#17168",
        torch=Range((2, 5), (2, 8)),
    ),
    KnownFault(
        id="offset-fill-wrong",
        what="torch 2.12.0 fills the wrong part of a mask that is a view with a storage offset on MPS",
        remedy="install a newer torch",
        sources="pytorch#183631",
        torch=Range((2, 12), (2, 12, 1)),
    ),
    KnownFault(
        id="numpy-too-new",
        what="torch before 2.3 was built for NumPy 1 and cannot exchange arrays with NumPy 2: `Numpy is not available`",
        remedy='install torch 2.3 or newer, or: pip install "numpy<2"',
        sources="pytorch#132179, pytorch#107302",
        severity="fatal",
        torch=Range((1,), (2, 3)),
        macos=None,
        packages={"numpy": Range((2,), (99,))},
        on_mps=False,
    ),
)
"""Bugs of torch. A framework names its own (`Framework.known_faults`)."""


def all_known_faults() -> Iterator[KnownFault]:
    yield from KNOWN_FAULTS
    for framework in all_frameworks():
        yield from framework.known_faults


def parse_version(text: str | None) -> Version | None:
    """Return the leading numbers: "2.13.0+cpu" -> (2, 13, 0)."""
    found = _NUMBERS.match(text.strip().removeprefix("v")) if text else None
    return tuple(int(part) for part in found[0].split(".")) if found else None


def versions_of(state: RunState) -> Versions:
    platform = state.started.platform if state.started is not None else ""
    macos = _MACOS.match(platform)
    torch = state.attempt.torch if state.attempts else None
    return Versions(torch=parse_version(torch), macos=parse_version(macos[1]) if macos else None)


def faults_of(versions: Versions) -> list[KnownFault]:
    return [fault for fault in all_known_faults() if fault.affects(versions)]


def torchvision_for(torch: Version | None) -> Version | None:
    """Return the torchvision version that matches a torch version: 0.(15 + n) for torch 2.n, None for other versions."""
    if torch is None or len(torch) < 2 or torch[0] != 2:
        return None
    return 0, 15 + torch[1]


def on_mps(state: RunState) -> bool | None:
    """Return whether the run trains on Apple's GPU; None if the record does not show it."""
    device = state.attempt.memory.device if state.attempts else None
    kind = parse_device(device.device).kind if device is not None else None
    if kind is not None and kind.is_accelerator:
        return kind.name == "mps"
    known = state.started.platform.lower() if state.started is not None else ""
    return False if known.startswith(("linux", "windows", "freebsd")) else None


def newer_torch(state: RunState, fixed: Version) -> str | None:
    """Return the suggestion to install a newer torch; None if the installed version is new enough."""
    have = versions_of(state).torch
    if have is not None and have >= fixed:
        return None
    used = f" (this run used {format_version(have)})" if have is not None else ""
    return f"install torch {format_version(fixed)} or newer{used}"


def newest_torch(state: RunState) -> str:
    """Return the suggestion to install the newest torch, for bugs without a known fix."""
    have = versions_of(state).torch
    used = f": this run used {format_version(have)}" if have is not None else ""
    return f"install the newest torch{used}"


def format_version(version: Version) -> str:
    return ".".join(map(str, version))
