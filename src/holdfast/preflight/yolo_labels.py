"""A look at the labels of a data set: as many as a second or two allows, taken evenly, and said how many that were."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from holdfast.preflight.yolo_data import label_path
from holdfast.storage.safe_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.preflight.yolo_data import DataSet

MAX_LABELS = 2000
"""Files of each split that are opened."""
MAX_LABEL = 2 << 20
MAX_READ = 64 << 20
"""Bytes of all labels of a split together."""
OUTSIDE = 0.01
"""How far outside of the image a corner may lie before Ultralytics passes the image over."""


class Wrong(NamedTuple):
    label: Path
    line: int
    message: str
    class_id: bool = False
    """A class that there is not, which is seldom one file's mistake alone."""


@dataclass(frozen=True)
class LabelSample:
    looked_at: int
    of: int
    missing: int
    empty: int
    boxes: int
    wrong: list[Wrong]

    @property
    def counted(self) -> str:
        return f"all {self.of}" if self.looked_at == self.of else f"{self.looked_at:,} of {self.of:,}, taken evenly"


def look(
    data: DataSet, split: str, *, oriented: bool = False, any_class: bool = False, most: int = MAX_LABELS
) -> LabelSample:
    """The labels of one split. `oriented`: boxes are four corners; `any_class`: all classes are trained as one."""
    images = data.splits.get(split, [])
    chosen = sample_evenly(images, most)
    missing = empty = boxes = read = 0
    wrong: list[Wrong] = []
    for looked_at, image in enumerate(chosen):
        if read > MAX_READ:
            chosen = chosen[:looked_at]
            break
        label = label_path(image)
        try:
            content = read_bytes(label, MAX_LABEL)
            lines = content.decode("utf-8-sig").splitlines()
        except FileNotFoundError:
            missing += 1
            continue
        except OSError as error:
            wrong.append(Wrong(label, 1, f"cannot be read: {error.strerror}"))
            continue
        except UnicodeDecodeError:
            wrong.append(Wrong(label, 1, "is no text"))
            continue
        read += len(content)
        rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
        empty += not rows
        boxes += len(rows)
        first = next(
            (said for number, row in rows if (said := _wrong(row, data, oriented, any_class, label, number))), None
        )
        if first is not None:
            wrong.append(first)
    return LabelSample(len(chosen), len(images), missing, empty, boxes, wrong)


def sample_evenly(images: Sequence[Path], most: int) -> list[Path]:
    """As many as allowed, spread over all of them: a data set is often sorted by where it came from."""
    if len(images) <= most:
        return list(images)
    return [images[number * len(images) // most] for number in range(most)]


def _wrong(row: list[str], data: DataSet, oriented: bool, any_class: bool, label: Path, number: int) -> Wrong | None:
    try:
        values = [float(word) for word in islice(row, 5000)]
    except ValueError:
        return Wrong(label, number, "has something that is no number")
    if not all(map(math.isfinite, values)):
        return Wrong(label, number, "has a number that is not finite")
    kind, places = values[0], values[1:]
    if not kind.is_integer() or kind < 0:
        return Wrong(label, number, f"has class {kind:g}, which is no class number", class_id=True)
    if kind >= len(data.names) and not any_class:
        return Wrong(
            label,
            number,
            f"has class {kind:g}, but the yaml names {len(data.names)} ({_range(len(data.names))})",
            class_id=True,
        )
    points = data.keypoints[0] * data.keypoints[1] if data.keypoints else None
    if points is not None and len(places) == 4 + points:
        places = places[:4]
    elif (len(places) != 4 or oriented) and (len(places) < 6 or len(places) % 2):
        return Wrong(label, number, f"has {len(row)} columns; a box has 5: class, centre x and y, width, height")
    if max(places) > 1 + OUTSIDE or min(places) < -OUTSIDE:
        return Wrong(label, number, "has a place outside of the image; places are shares between 0 and 1, not pixels")
    return None


def _range(count: int) -> str:
    return "0 only" if count == 1 else f"0 to {count - 1}"
