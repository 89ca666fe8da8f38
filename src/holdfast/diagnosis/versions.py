"""Versions and devices, as far as a record tells them: pure comparisons for faults that only some versions have.

What is not recorded is None, and None is never taken for a match: a rule then speaks of what may be, not of what is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

Version = tuple[int, ...]

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_MACOS = re.compile(r"^macos-(\d+(?:\.\d+)*)", re.IGNORECASE)
_BANNER = re.compile(
    r"Ultralytics (?:YOLOv)?(?P<ultralytics>\d+(?:\.\d+)+)\b.*?\btorch-(?P<torch>\d\S*) (?P<device>CPU|MPS|CUDA:[\d,]+)?"
)


class Versions(NamedTuple):
    torch: Version | None = None
    macos: Version | None = None
    ultralytics: Version | None = None
    torchvision: Version | None = None
    numpy: Version | None = None


@dataclass(frozen=True)
class Range:
    """From the first version that has a fault to the first that no longer has it."""

    first: Version
    mended: Version

    def __contains__(self, version: Version | None) -> bool:
        return version is not None and self.first <= version < self.mended


@dataclass(frozen=True)
class KnownFault:
    """A fault of published versions that ends a training, or makes it wrong without a word."""

    id: str
    what: str
    remedy: str
    sources: str
    severity: Literal["warn", "fatal"] = "warn"
    """Fatal where every detector meets it; a warning where it takes certain shapes or luck."""
    torch: Range | None = None
    macos: Range | None = None
    ultralytics: Range | None = None
    numpy: Range | None = None
    on_mps: bool = True
    """It is Apple's GPU that is wrong; on the CPU of the same machine all is well."""
    chips: tuple[str, ...] = ()
    """Only these, by how their names begin; empty: all."""
    variable: str | None = None
    """A variable that avoids it when it is 1 before torch is imported."""

    def affects(self, versions: Versions) -> bool:
        """Only where every version that it depends on is known and in range."""
        wanted = (
            (self.torch, versions.torch),
            (self.macos, versions.macos),
            (self.ultralytics, versions.ultralytics),
            (self.numpy, versions.numpy),
        )
        return all(found in range_ for range_, found in wanted if range_ is not None)


ANY_MACOS = Range((12,), (99,))

KNOWN_FAULTS = (
    KnownFault(
        id="scalar-writes-lost",
        what="macOS 14.4 with torch 2.2 loses writes of single numbers on MPS: losses come out as exactly 0",
        remedy="install torch 2.3 or newer",
        sources="pytorch#122016, pytorch#123385, ultralytics#9113, ultralytics#9933",
        severity="fatal",
        torch=Range((2, 2), (2, 3)),
        macos=Range((14, 4), (14, 5)),
    ),
    KnownFault(
        id="copies-not-awaited",
        what="ultralytics 8.3.203 copies batches to MPS without waiting: boxes arrive corrupt and none is assigned",
        remedy="install ultralytics 8.3.204 or newer",
        sources="ultralytics/hub#1199, ultralytics#22228, ultralytics#7554, pytorch#139550",
        severity="fatal",
        ultralytics=Range((8, 3, 203), (8, 3, 204)),
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="matmul-reads-too-far",
        what="torch up to 2.13 reads past the end in products over 32767 or more numbers on M1 and M2: gradients are "
        "thousands of times too large",
        remedy="install torch 2.14 or newer, or set PYTORCH_MPS_PREFER_METAL=1 before torch is imported",
        sources="pytorch#177116, pytorch#183535",
        torch=Range((2, 0), (2, 14)),
        macos=ANY_MACOS,
        chips=("Apple M1", "Apple M2"),
        variable="PYTORCH_MPS_PREFER_METAL",
    ),
    KnownFault(
        id="in-place-writes-lost",
        what="torch before 2.4 loses the optimizer's writes (addcmul_, addcdiv_) to weights that are not contiguous on MPS: "
        "they never change",
        remedy="install torch 2.4 or newer",
        sources="pytorch#118115, pytorch#165267",
        torch=Range((2, 0), (2, 4)),
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="expanded-gradients-wrong",
        what="macOS 15 to 26.2 can give zero or corrupt gradients through expanded tensors on MPS",
        remedy="update macOS to 26.3 or newer, or call .contiguous() on what was expanded",
        sources="pytorch#180201",
        macos=Range((15,), (26, 3)),
    ),
    KnownFault(
        id="counts-overflow",
        what="torch 2.3 can miscount the labels of a batch on MPS (`unique`): it ends with `negative dimension`, at random",
        remedy="install a newer torch",
        sources="ultralytics#14658, ultralytics/hub#591",
        torch=Range((2, 3), (2, 4)),
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="backward-view-incompatible",
        what="torch 2.5 to 2.7 cannot go backward through convolutions on channels-last input on MPS",
        remedy="install torch 2.8 or newer, or do not use channels_last",
        sources="pytorch#142344, pytorch#143196, ultralytics#17168",
        torch=Range((2, 5), (2, 8)),
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="offset-fill-wrong",
        what="torch 2.12.0 fills the wrong part of a mask that begins inside another tensor on MPS",
        remedy="install a newer torch",
        sources="pytorch#183631",
        torch=Range((2, 12), (2, 12, 1)),
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="validated-in-half",
        what="ultralytics 8.0.142 validates in half precision on MPS: losses are fine and every metric is 0",
        remedy="install a newer ultralytics",
        sources="ultralytics#3962",
        severity="fatal",
        ultralytics=Range((8, 0, 142), (8, 0, 143)),
        macos=ANY_MACOS,
    ),
    KnownFault(
        id="numpy-too-new",
        what="torch before 2.3 was built for NumPy 1 and cannot exchange arrays with NumPy 2: `Numpy is not available`",
        remedy='install torch 2.3 or newer, or: pip install "numpy<2"',
        sources="pytorch#132179, pytorch#107302",
        severity="fatal",
        torch=Range((1,), (2, 3)),
        numpy=Range((2,), (99,)),
        on_mps=False,
    ),
)


def parsed(text: str | None) -> Version | None:
    """The leading numbers: "2.13.0+cpu" -> (2, 13, 0)."""
    found = _NUMBERS.match(text.strip().removeprefix("v")) if text else None
    return tuple(int(part) for part in found[0].split(".")) if found else None


def versions_of(state: RunState) -> Versions:
    platform = state.started.platform if state.started is not None else ""
    macos = _MACOS.match(platform)
    torch = state.attempt.torch if state.attempts else None
    return Versions(torch=parsed(torch), macos=parsed(macos[1]) if macos else None)


def versions_in_banner(line: str) -> tuple[Versions, str | None] | None:
    """What the line says that Ultralytics begins with, and the device: for logs that come without a record."""
    found = _BANNER.search(line)
    if found is None:
        return None
    return Versions(torch=parsed(found["torch"]), ultralytics=parsed(found["ultralytics"])), found["device"]


def faults_of(versions: Versions) -> list[KnownFault]:
    return [fault for fault in KNOWN_FAULTS if fault.affects(versions)]


def torchvision_for(torch: Version | None) -> Version | None:
    """The version that belongs with torch 2.n is 0.(15 + n); of others nothing is said."""
    if torch is None or len(torch) < 2 or torch[0] != 2:
        return None
    return 0, 15 + torch[1]


def on_mps(state: RunState) -> bool | None:
    """Whether it trains on Apple's GPU; None where the record does not tell."""
    device = state.attempt.memory.device if state.attempts else None
    if device is not None and device.device != "cpu":
        return device.device.startswith("mps")
    known = state.started.platform.lower() if state.started is not None else ""
    return False if known.startswith(("linux", "windows", "freebsd")) else None


def newer_torch(state: RunState, mended: Version) -> str | None:
    """The remedy, with what is installed; None where that is new enough already."""
    have = versions_of(state).torch
    if have is not None and have >= mended:
        return None
    used = f" (this run used {text_of(have)})" if have is not None else ""
    return f"install torch {text_of(mended)} or newer{used}"


def newest_torch(state: RunState) -> str:
    """The remedy where no release is known to have mended it."""
    have = versions_of(state).torch
    used = f": this run used {text_of(have)}" if have is not None else ""
    return f"install the newest torch{used}"


def text_of(version: Version) -> str:
    return ".".join(map(str, version))
