"""A CSV file as rows of named cells. Names lose their spaces: older Ultralytics pads them."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from holdfast.schema.errors import RecordUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.importers.text import Source

Row = dict[str, str]
MAX_LINE = 64 << 10
MAX_COLUMNS = 1000
MAX_ROWS = 10_000
"""Of one table: the first half of them from its beginning, the other from its end."""


class Table:
    def __init__(self, source: Source) -> None:
        self._source = source
        lines = source.head.lstrip("\n\r ").splitlines()
        self.columns = columns_of(lines[0]) if lines else []
        self.left_out = 0
        """Rows in the middle of a table that has more than `MAX_ROWS`."""
        self.corrupt = 0
        """Rows that could not be read: cut, overlong, or with another number of cells."""
        if not any(self.columns):
            raise RecordUnknown(
                f"{source.name} is empty."
                if not lines
                else f"{source.name} has no line with the names of its columns.",
                next_step="give a results.csv or metrics.csv that a training has written, or the run's log",
            )

    def rows(self) -> Iterator[Row]:
        """In order. The names may come again in the middle: a training that was started twice into one file."""
        lines = _lines(self._source)
        self.left_out = max(0, len(lines) - MAX_ROWS)
        if self.left_out:
            lines = lines[: MAX_ROWS // 2] + lines[-MAX_ROWS // 2 :]
        for line in lines:
            if not line.strip():
                continue
            cells = _cells(line)
            if cells is None or len(cells) != len(self.columns):
                # A row that was being written when the training died is cut: what it has of its last cell is not whole.
                self.corrupt += 1
                continue
            if cells != self.columns:
                yield dict(zip(self.columns, cells, strict=True))

    @property
    def note(self) -> str:
        told = []
        if self.left_out:
            told.append(
                f"Of {self._source.name} the first and the last {MAX_ROWS // 2:,} rows were read; {self.left_out:,} between "
                "were not."
            )
        if self.corrupt:
            rows = "1 row" if self.corrupt == 1 else f"{self.corrupt} rows"
            told.append(
                f"{rows} of {self._source.name} could not be read (cut, or with another number of cells than columns)."
            )
        return " ".join(told)


def columns_of(line: str) -> list[str]:
    return _cells(line) or []


def _cells(line: str) -> list[str] | None:
    if len(line) > MAX_LINE:
        return None
    try:
        cells = next(csv.reader(io.StringIO(line)), [])
    except csv.Error:
        return None
    return [cell.strip() for cell in cells] if len(cells) <= MAX_COLUMNS else None


def _lines(source: Source) -> list[str]:
    return source.head.lstrip("\n\r ").splitlines()[1:] + source.tail.splitlines()[1:]
