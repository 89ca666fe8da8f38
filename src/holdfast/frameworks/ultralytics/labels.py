"""A check of a sample of the labels of a dataset: evenly spaced, as many as fit into a second or two, with the count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from holdfast.frameworks.ultralytics.data_set import label_path
from holdfast.storage.safe_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.frameworks.ultralytics.data_set import DataSet

MAX_LABELS = 2000
"""Files of each split that are opened."""
MAX_LABEL = 2 << 20
MAX_READ = 64 << 20
"""Bytes of all labels of a split together."""
OUTSIDE = 0.01
"""How far outside the image a corner may be before Ultralytics skips the image."""


class LabelFault(NamedTuple):
    label: Path
    line: int
    message: str
    class_id: bool = False
    """The class does not exist, which rarely concerns only one file."""


@dataclass(frozen=True)
class LabelSample:
    checked: int
    total: int
    missing: int
    empty: int
    boxes: int
    faults: list[LabelFault]

    @property
    def counted(self) -> str:
        return (
            f"all {self.total}" if self.checked == self.total else f"{self.checked:,} of {self.total:,}, evenly sampled"
        )


def sample_labels(
    data: DataSet, split: str, *, oriented: bool = False, any_class: bool = False, most: int = MAX_LABELS
) -> LabelSample:
    """Check the labels of one split. `oriented`: boxes are four corners; `any_class`: all classes are trained as one."""
    images = data.splits.get(split, [])
    chosen = sample_evenly(images, most)
    missing = empty = boxes = read = 0
    faults: list[LabelFault] = []
    for checked, image in enumerate(chosen):
        if read > MAX_READ:
            chosen = chosen[:checked]
            break
        label = label_path(image)
        try:
            content = read_bytes(label, MAX_LABEL)
            lines = content.decode("utf-8-sig").splitlines()
        except FileNotFoundError:
            missing += 1
            continue
        except OSError as error:
            faults.append(LabelFault(label, 1, f"cannot be read: {error.strerror}"))
            continue
        except UnicodeDecodeError:
            faults.append(LabelFault(label, 1, "is not text"))
            continue
        read += len(content)
        rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
        empty += not rows
        boxes += len(rows)
        first = next(
            (fault for number, row in rows if (fault := _find_fault(row, data, oriented, any_class, label, number))),
            None,
        )
        if first is not None:
            faults.append(first)
    return LabelSample(len(chosen), len(images), missing, empty, boxes, faults)


def sample_evenly(images: Sequence[Path], most: int) -> list[Path]:
    """Return at most `most` images, evenly spaced, because a dataset is often sorted by its source."""
    if len(images) <= most:
        return list(images)
    return [images[number * len(images) // most] for number in range(most)]


def _find_fault(
    row: list[str], data: DataSet, oriented: bool, any_class: bool, label: Path, number: int
) -> LabelFault | None:
    try:
        values = [float(word) for word in islice(row, 5000)]
    except ValueError:
        return LabelFault(label, number, "has a value that is not a number")
    if not all(map(math.isfinite, values)):
        return LabelFault(label, number, "has a value that is not finite")
    kind, places = values[0], values[1:]
    if not kind.is_integer() or kind < 0:
        return LabelFault(label, number, f"has class {kind:g}, which is not a class number", class_id=True)
    if kind >= len(data.names) and not any_class:
        return LabelFault(
            label,
            number,
            f"has class {kind:g}, but the YAML file names {len(data.names)} ({_format_range(len(data.names))})",
            class_id=True,
        )
    points = data.keypoints[0] * data.keypoints[1] if data.keypoints else None
    if points is not None and len(places) == 4 + points:
        places = places[:4]
    elif (len(places) != 4 or oriented) and (len(places) < 6 or len(places) % 2):
        return LabelFault(label, number, f"has {len(row)} columns; a box has 5: class, center x and y, width, height")
    if max(places) > 1 + OUTSIDE or min(places) < -OUTSIDE:
        return LabelFault(
            label, number, "has a coordinate outside the image; coordinates are between 0 and 1, not pixels"
        )
    return None


def _format_range(count: int) -> str:
    return "0 only" if count == 1 else f"0 to {count - 1}"
