"""One look at the data set for all checks that ask about it: the first of them takes it, within its time."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from holdfast.preflight.checks.check import NotChecked
from holdfast.preflight.images.readers import ReadersFailed
from holdfast.preflight.images.survey import survey
from holdfast.preflight.yolo_data import read
from holdfast.schema.errors import DataSetInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.yolo_data import DataSet
    from holdfast.schema.images import Survey

SECONDS = 240.0
"""For the check that comes first: 10,000 images take about ten on two cores, a hundred thousand a few minutes."""
RESERVED_S = 10.0
"""Of a check's time, for what comes after the look."""

_lock = threading.Lock()
_taken: dict[tuple[Path, str], tuple[DataSet, Survey]] = {}


def read_data(context: CheckContext) -> DataSet:
    """Raises DataSetInvalid, in sentences for the user."""
    assert context.data is not None, "the check must say that it needs the data"
    return read(context.data, cwd=context.cwd)


def get_survey(context: CheckContext) -> Survey:
    """What is seen of the data set. Raises NotChecked where nothing can be seen."""
    return get_data_and_survey(context)[1]


def get_data_and_survey(context: CheckContext) -> tuple[DataSet, Survey]:
    assert context.data is not None, "the check must say that it needs the data"
    python = context.interpreter.executable if context.interpreter is not None else sys.executable
    with _lock:
        key = (context.data, python)
        if key not in _taken:
            _taken.clear()
            _taken[key] = _look(context, python)
        return _taken[key]


def forget() -> None:
    """The next check looks again."""
    with _lock:
        _taken.clear()


def _look(context: CheckContext, python: str) -> tuple[DataSet, Survey]:
    try:
        data = read_data(context)
    except DataSetInvalid as error:
        raise NotChecked(error.what.splitlines()[0]) from None
    if data.masks:
        raise NotChecked("its labels are images of their own (masks): only boxes, polygons and poses are checked")
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
        raise NotChecked(f"images cannot be looked at with {python}: {error}") from None
    if not seen.images:
        raise NotChecked(f"no image could be looked at within {seconds:.0f} s: give more with --seconds")
    return data, seen
