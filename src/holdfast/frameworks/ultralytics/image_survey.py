"""A survey of a dataset: its images, their labels, and labels without an image."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.data_set import label_path
from holdfast.preflight.images.order import spread
from holdfast.preflight.images.readers import Readers, Request, Task
from holdfast.schema.images import ImageRecord, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MAX_READERS = 8
"""Each may briefly use a few hundred MB if images are large."""
STRAY_EXAMPLES = 5
NOT_LABELS = frozenset({"classes", "labels", "names", "obj", "predefined_classes", "readme", "license", "notes"})
"""Names (without `.txt`) of text files that are often next to labels but are not labels."""


def survey(
    root: str,
    names: Mapping[int, str],
    splits: Mapping[str, Sequence[str]],
    python: str,
    *,
    classes: int | None = None,
    columns: int | None = None,
    seconds: float = 3600.0,
    readers: int | None = None,
    notify: Callable[[int, int], None] = lambda _done, _total: None,
) -> Survey:
    """Read all images, or as many as there is time for, evenly sampled.

    `python` is the interpreter that has Pillow. Without Pillow only labels are read, and the survey reports that.
    """
    began = time.monotonic()
    listed = [(split, path) for split, paths in splits.items() for path in paths]
    labels = [str(label_path(Path(path))) for _, path in listed]
    requests = [Request(at, listed[at][1], labels[at]) for at in spread(len(listed))]
    work = Readers(python, Task(classes, columns), requests, count=min(MAX_READERS, readers or count_cores()))
    found: list[ImageRecord] = []
    notify(0, len(listed))
    for seen in work.answers(seconds):
        split, path = listed[seen.index]
        found.append(ImageRecord(path, split, seen))
        notify(len(found), len(listed))
    found.sort(key=lambda image: image.seen.index)  # a stable order, regardless of which reader was faster
    strays = find_stray_labels(labels)
    return Survey(
        root=root,
        names=dict(names),
        images=tuple(found),
        total=len(listed),
        stray_labels=len(strays),
        stray_examples=tuple(strays[:STRAY_EXAMPLES]),
        decoded=work.pillow is not None,
        python=python,
        seconds=time.monotonic() - began,
    )


def find_stray_labels(labels: Iterable[str]) -> list[str]:
    """Return label files in the same folders that belong to no image."""
    expected = set(labels)
    found: list[str] = []
    for folder in sorted({os.path.dirname(label) for label in expected}):  # noqa: PTH120 - a million times
        try:
            with os.scandir(folder) as entries:
                found += [
                    entry.path
                    for entry in entries
                    if entry.name.endswith(".txt") and entry.path not in expected and _may_be_labels(entry.name)
                ]
        except OSError:
            continue  # the labels expected there are reported as missing
    return sorted(found)


def _may_be_labels(name: str) -> bool:
    stem = name[:-4].lower()
    return stem not in NOT_LABELS and stem not in {"train", "val", "valid", "test", "trainval"} and stem[:1] != "."


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
