"""Versions and devices, as far as a record tells them: pure comparisons for faults that only some versions have.

What is not recorded is None, and None is never taken for a match: a rule then speaks of what may be, not of what is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.judge.picture import Picture

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


@dataclass(frozen=True)
class Range:
    """From the first version that has a fault to the first that no longer has it."""

    first: Version
    mended: Version

    def __contains__(self, version: Version | None) -> bool:
        return version is not None and self.first <= version < self.mended


@dataclass(frozen=True)
class KnownFault:
    """A fault of published versions that makes a training wrong without a word."""

    id: str
    what: str
    remedy: str
    sources: str
    torch: Range | None = None
    macos: Range | None = None
    ultralytics: Range | None = None

    def affects(self, versions: Versions) -> bool:
        """Only where every version that it depends on is known and in range."""
        wanted = ((self.torch, versions.torch), (self.macos, versions.macos), (self.ultralytics, versions.ultralytics))
        return all(found in range_ for range_, found in wanted if range_ is not None)


KNOWN_FAULTS = (
    KnownFault(
        id="scalar-writes-lost",
        what="macOS 14.4 with torch 2.2 loses writes of single numbers on MPS: losses come out as exactly 0",
        remedy="install torch 2.3 or newer",
        sources="pytorch#122016, pytorch#123385, ultralytics#9113, ultralytics#9933",
        torch=Range((2, 2), (2, 3)),
        macos=Range((14, 4), (14, 5)),
    ),
    KnownFault(
        id="copies-not-awaited",
        what="ultralytics 8.3.203 copies batches to MPS without waiting: boxes arrive corrupt and none is assigned",
        remedy="install ultralytics 8.3.204 or newer",
        sources="ultralytics/hub#1199, ultralytics#22228, ultralytics#7554, pytorch#139550",
        ultralytics=Range((8, 3, 203), (8, 3, 204)),
        macos=Range((12,), (99,)),
    ),
    KnownFault(
        id="matmul-reads-too-far",
        what="torch up to 2.13 reads past the end in products over 32767 or more numbers on M1 and M2: gradients are "
        "thousands of times too large",
        remedy="install torch 2.14 or newer, or set PYTORCH_MPS_PREFER_METAL=1 before torch is imported",
        sources="pytorch#177116, pytorch#183535",
        torch=Range((2, 0), (2, 14)),
        macos=Range((12,), (99,)),
    ),
)


def parsed(text: str | None) -> Version | None:
    """The leading numbers: "2.13.0+cpu" -> (2, 13, 0)."""
    found = _NUMBERS.match(text.strip().removeprefix("v")) if text else None
    return tuple(int(part) for part in found[0].split(".")) if found else None


def versions_of(picture: Picture) -> Versions:
    platform = picture.started.platform if picture.started is not None else ""
    macos = _MACOS.match(platform)
    torch = picture.attempt.torch if picture.attempts else None
    return Versions(torch=parsed(torch), macos=parsed(macos[1]) if macos else None)


def versions_in_banner(line: str) -> tuple[Versions, str | None] | None:
    """What the line says that Ultralytics begins with, and the device: for logs that come without a record."""
    found = _BANNER.search(line)
    if found is None:
        return None
    return Versions(torch=parsed(found["torch"]), ultralytics=parsed(found["ultralytics"])), found["device"]


def faults_of(versions: Versions) -> list[KnownFault]:
    return [fault for fault in KNOWN_FAULTS if fault.affects(versions)]


def on_mps(picture: Picture) -> bool | None:
    """Whether it trains on Apple's GPU; None where the record does not tell."""
    device = picture.attempt.memory.device if picture.attempts else None
    if device is not None and device.device != "cpu":
        return device.device.startswith("mps")
    known = picture.started.platform.lower() if picture.started is not None else ""
    return False if known.startswith(("linux", "windows", "freebsd")) else None


def newer_torch(picture: Picture, mended: Version) -> str | None:
    """The remedy, with what is installed; None where that is new enough already."""
    have = versions_of(picture).torch
    if have is not None and have >= mended:
        return None
    used = f" (this run used {_text(have)})" if have is not None else ""
    return f"install torch {_text(mended)} or newer{used}"


def newest_torch(picture: Picture) -> str:
    """The remedy where no release is known to have mended it."""
    have = versions_of(picture).torch
    used = f": this run used {_text(have)}" if have is not None else ""
    return f"install the newest torch{used}"


def _text(version: Version) -> str:
    return ".".join(map(str, version))
