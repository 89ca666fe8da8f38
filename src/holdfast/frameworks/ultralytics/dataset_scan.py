"""A scan of the dataset that all data checks share. The first check makes it, within its time limit."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.data_set import read
from holdfast.frameworks.ultralytics.image_survey import survey
from holdfast.preflight.checks.check import NotChecked
from holdfast.preflight.images.readers import ReadersFailed
from holdfast.schema.errors import DataSetInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.frameworks.ultralytics.data_set import DataSet
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.images import Survey

SECONDS = 240.0
"""For the first check: 10,000 images take about 10 s on two cores, 100,000 images a few minutes."""
RESERVED_S = 10.0
"""Part of a check's time that is reserved for the work after the scan."""

_lock = threading.Lock()
_scans: dict[tuple[Path, str], tuple[DataSet, Survey]] = {}


def read_data(context: CheckContext) -> DataSet:
    """Read the dataset. Raises DataSetInvalid with messages for the user."""
    assert context.data is not None, "the check must declare that it needs the data"
    return read(context.data, cwd=context.cwd)


def get_survey(context: CheckContext) -> Survey:
    """Return the scan of the dataset. Raises NotChecked if it cannot be scanned."""
    return get_data_and_survey(context)[1]


def get_data_and_survey(context: CheckContext) -> tuple[DataSet, Survey]:
    assert context.data is not None, "the check must declare that it needs the data"
    python = context.interpreter.executable if context.interpreter is not None else sys.executable
    with _lock:
        key = (context.data, python)
        if key not in _scans:
            _scans.clear()
            _scans[key] = _scan(context, python)
        return _scans[key]


def clear() -> None:
    """Make the next check scan again."""
    with _lock:
        _scans.clear()


def _scan(context: CheckContext, python: str) -> tuple[DataSet, Survey]:
    try:
        data = read_data(context)
    except DataSetInvalid as error:
        raise NotChecked(error.what.splitlines()[0]) from None
    if data.masks:
        raise NotChecked("the labels are mask images: only boxes, polygons and poses are checked")
    points = data.keypoints
    seconds = max(1.0, context.seconds_left - min(RESERVED_S, context.seconds_left / 4))
    try:
        seen = survey(
            str(data.root),
            dict(enumerate(data.names)),
            {split: [str(path.absolute()) for path in paths] for split, paths in data.splits.items()},
            python,
            classes=len(data.names),
            columns=5 + points[0] * points[1] if points is not None else None,
            seconds=seconds,
            notify=lambda done, total: context.notify(done, total, "images"),
        )
    except ReadersFailed as error:
        raise NotChecked(f"images cannot be read with {python}: {error}") from None
    if not seen.images:
        raise NotChecked(f"no image could be read within {seconds:.0f} s: increase --seconds")
    return data, seen
