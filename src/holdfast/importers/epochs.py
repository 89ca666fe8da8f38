"""Rows that stand for epochs, as events: one `epoch` and one `metrics` a row, and nothing that the row does not say."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.importers.base import number, told, whole
from holdfast.schema import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.importers.table import Row

_PREFIX = re.compile(r"^(train|training|val|valid|validation|eval|test)[_/ .-](.+)$", re.IGNORECASE)
_SAME = {"training": "train", "valid": "val", "validation": "val", "eval": "val"}
_COUNTS = frozenset(("epoch", "epochs", "time", "step", "iter", "iteration", "batch", "samples", "wall_time", ""))


class EpochRow(NamedTuple):
    epoch: int
    time: float | None
    """Seconds since the process started, at the end of the epoch."""
    values: dict[str, float]


def plain_name(name: str) -> str:
    """One way to write names: `train/loss`, `val/loss`, as Ultralytics has them; its own names stay as they are."""
    found = _PREFIX.match(name)
    if found:
        part = found[1].lower()
        return f"{_SAME.get(part, part)}/{found[2]}"
    if name.lower() == "loss":
        return "train/loss"
    if name.lower().startswith(("lr-", "lr_", "learning_rate")) or name.lower() == "lr":
        return f"lr/{name}"
    return name


def epoch_row(row: Row) -> EpochRow | None:
    """None where the row has no epoch."""
    epoch = whole(row.get("epoch"))
    if epoch is None or epoch < 0:
        return None
    time = number(row.get("time"))
    values = {plain_name(name): value for name, cell in row.items() if (value := _value(name, cell)) is not None}
    return EpochRow(epoch, time if time is not None and math.isfinite(time) and time >= 0 else None, values)


def _value(name: str, cell: str) -> float | None:
    return None if name.lower() in _COUNTS else number(cell)


class EpochEvents:
    """Turns epoch rows into events, with the seconds of each epoch from a clock that starts again at every resume."""

    def __init__(self, *, source: str, planned: int | None, from_zero: bool) -> None:
        self._source = source
        self._planned = planned
        self._shift = 1 if from_zero else 0
        self._waiting: list[EpochRow] = []
        """Rows that have no time: what they took is known only together with the next that has one."""
        self._time = 0.0
        self._timed_epoch = 0
        self.at = 0.0
        self.resumed_after: list[int] = []
        """Epochs after which the clock started again."""
        self.epoch = 0
        self.rows = 0
        self.shared: list[str] = []
        """Which epochs' seconds are a mean over several."""

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
            yield from self.rest()
            seconds = row.time
        epochs = max(1, row.epoch - self._timed_epoch)
        together = [*self._waiting, row]
        self._waiting = []
        if epochs > 1:
            self.shared.append(f"{self._timed_epoch + 1} to {row.epoch}")
        for one in together:
            share = seconds / epochs
            # Epochs that have no row took their part of the time too.
            before = one.epoch - (self._timed_epoch if one is together[0] else self.epoch)
            self.at += share * max(1, before) if epochs > 1 else share
            yield from self._events(one, share)
        self._time, self._timed_epoch = row.time, row.epoch

    def rest(self) -> Iterator[events.AnyEvent]:
        """Rows at the end of which no time is known."""
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
            values = {name: told(value) for name, value in row.values.items()}
            yield events.Metrics(at=self.at, step=0, epoch=row.epoch, values=values, source=self._source)
