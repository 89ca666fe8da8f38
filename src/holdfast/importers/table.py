"""A CSV file as rows of named cells. Column names are stripped: older Ultralytics pads them with spaces."""

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
"""Maximum rows to read of one table: one half from its beginning, the other from its end."""


class Table:
    def __init__(self, source: Source) -> None:
        self._source = source
        lines = source.head.lstrip("\n\r ").splitlines()
        self.columns = parse_columns(lines[0]) if lines else []
        self.left_out = 0
        """Rows skipped in the middle of a table with more than `MAX_ROWS`."""
        self.corrupt = 0
        """Rows that could not be read: truncated, too long, or with a wrong number of cells."""
        if not any(self.columns):
            raise RecordUnknown(
                f"{source.name} is empty." if not lines else f"{source.name} has no header line with column names.",
                next_step="give the results.csv or metrics.csv of a training, or its log",
            )

    def rows(self) -> Iterator[Row]:
        """Yield the rows in order. The header may repeat in the middle if a training was started twice with one file."""
        lines = _split_lines(self._source)
        self.left_out = max(0, len(lines) - MAX_ROWS)
        if self.left_out:
            lines = lines[: MAX_ROWS // 2] + lines[-MAX_ROWS // 2 :]
        for line in lines:
            if not line.strip():
                continue
            cells = _parse_cells(line)
            if cells is None or len(cells) != len(self.columns):
                # A row that was being written when the training crashed is truncated: its last cell may be incomplete.
                self.corrupt += 1
                continue
            if cells != self.columns:
                yield dict(zip(self.columns, cells, strict=True))

    @property
    def note(self) -> str:
        notes = []
        if self.left_out:
            notes.append(
                f"Only the first and last {MAX_ROWS // 2:,} rows of {self._source.name} were read; {self.left_out:,} rows between "
                "were not."
            )
        if self.corrupt:
            rows = "1 row" if self.corrupt == 1 else f"{self.corrupt} rows"
            notes.append(
                f"{rows} of {self._source.name} could not be read (truncated, or with a wrong number of cells)."
            )
        return " ".join(notes)


def parse_columns(line: str) -> list[str]:
    return _parse_cells(line) or []


def _parse_cells(line: str) -> list[str] | None:
    if len(line) > MAX_LINE:
        return None
    try:
        cells = next(csv.reader(io.StringIO(line)), [])
    except csv.Error:
        return None
    return [cell.strip() for cell in cells] if len(cells) <= MAX_COLUMNS else None


def _split_lines(source: Source) -> list[str]:
    return source.head.lstrip("\n\r ").splitlines()[1:] + source.tail.splitlines()[1:]
