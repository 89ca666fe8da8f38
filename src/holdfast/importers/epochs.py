"""Events from rows of epochs: one `epoch` and one `metrics` event per row, with only what the row contains."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.importers.base import parse_float, parse_int, to_json_number
from holdfast.schema import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.importers.table import Row

_PREFIX = re.compile(r"^(train|training|val|valid|validation|eval|test)[_/ .-](.+)$", re.IGNORECASE)
_SYNONYMS = {"training": "train", "valid": "val", "validation": "val", "eval": "val"}
_COUNTS = frozenset(("epoch", "epochs", "time", "step", "iter", "iteration", "batch", "samples", "wall_time", ""))


class EpochRow(NamedTuple):
    epoch: int
    time: float | None
    """Seconds since the process started, at the end of the epoch."""
    values: dict[str, float]


def normalize_name(name: str) -> str:
    """Return the name with its phase as a prefix: `train/loss`, `val/loss`. Other names are not changed."""
    found = _PREFIX.match(name)
    if found:
        part = found[1].lower()
        return f"{_SYNONYMS.get(part, part)}/{found[2]}"
    if name.lower() == "loss":
        return "train/loss"
    if name.lower().startswith(("lr-", "lr_", "learning_rate")) or name.lower() == "lr":
        return f"lr/{name}"
    return name


def parse_epoch_row(row: Row) -> EpochRow | None:
    """Parse a row. Return None if it has no epoch."""
    epoch = parse_int(row.get("epoch"))
    if epoch is None or epoch < 0:
        return None
    time = parse_float(row.get("time"))
    values = {normalize_name(name): value for name, cell in row.items() if (value := _value(name, cell)) is not None}
    return EpochRow(epoch, time if time is not None and math.isfinite(time) and time >= 0 else None, values)


def _value(name: str, cell: str) -> float | None:
    return None if name.lower() in _COUNTS else parse_float(cell)


class EpochEvents:
    """Turns epoch rows into events. The seconds of each epoch come from a timer that restarts at every resume."""

    def __init__(self, *, source: str, planned: int | None, from_zero: bool) -> None:
        self._source = source
        self._planned = planned
        self._shift = 1 if from_zero else 0
        self._waiting: list[EpochRow] = []
        """Rows without a time: their duration is known only together with the next row that has a time."""
        self._time = 0.0
        self._timed_epoch = 0
        self.at = 0.0
        self.resumed_after: list[int] = []
        """Epochs after which the timer restarted."""
        self.epoch = 0
        self.rows = 0
        self.shared: list[str] = []
        """Ranges of epochs whose seconds are a mean."""

    def take(self, row: EpochRow) -> Iterator[events.AnyEvent]:
        row = row._replace(epoch=row.epoch + self._shift)
        self.rows += 1
        if row.time is None:
            self._waiting.append(row)
            return
        seconds = row.time - self._time
        if seconds < 0:
            self.resumed_after.append(self._waiting[-1].epoch if self._waiting else self._timed_epoch)
            self._timed_epoch = self.resumed_after[-1]
            yield from self.flush()
            seconds = row.time
        epochs = max(1, row.epoch - self._timed_epoch)
        timed_rows = [*self._waiting, row]
        self._waiting = []
        if epochs > 1:
            self.shared.append(f"{self._timed_epoch + 1} to {row.epoch}")
        for timed_row in timed_rows:
            share = seconds / epochs
            # Epochs without a row took their share of the time too.
            before = timed_row.epoch - (self._timed_epoch if timed_row is timed_rows[0] else self.epoch)
            self.at += share * max(1, before) if epochs > 1 else share
            yield from self._events(timed_row, share)
        self._time, self._timed_epoch = row.time, row.epoch

    def flush(self) -> Iterator[events.AnyEvent]:
        """Emit the remaining rows, whose time is unknown."""
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            yield from self._events(row, 0.0)

    def _events(self, row: EpochRow, seconds: float) -> Iterator[events.AnyEvent]:
        self.epoch = row.epoch
        yield events.Epoch(
            at=self.at,
            epoch=row.epoch,
            step=0,
            seconds=seconds,
            batches=0,
            planned=self._planned,
            source=self._source,
        )
        if row.values:
            values = {name: to_json_number(value) for name, value in row.values.items()}
            yield events.Metrics(at=self.at, step=0, epoch=row.epoch, values=values, source=self._source)
