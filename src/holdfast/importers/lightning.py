"""Importer for a Lightning CSV log: `metrics.csv` next to `hparams.yaml`, in `version_N` folders.

Its rows are sparse: each logging call fills the cells of what it logged. `step` counts optimizer steps from 0; `epoch` starts at 0 too.
A loss that is logged several times per epoch is one value of a window of steps; a value logged once belongs to the epoch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.importers.base import (
    Importer,
    Reading,
    ResumeHint,
    opening_events,
    parse_float,
    parse_int,
    single_value_stats,
    to_entries,
    to_json_number,
)
from holdfast.importers.epochs import normalize_name
from holdfast.importers.exits import infer_end
from holdfast.importers.settings import read_settings
from holdfast.importers.table import Table
from holdfast.importers.text import read_source
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.importers.text import Source
    from holdfast.process.output_matcher import OutputMatcher

SOURCE = "lightning"
_COUNTS = frozenset(("epoch", "step", ""))
_LOSSES = ("train_loss_step", "train/loss_step", "loss_step", "train_loss", "train/loss", "training_loss", "loss")
"""Names of the training loss, the most certain first."""


def read_folder(path: Path, exit_code: int | None, lines: OutputMatcher) -> Reading:
    file = path / "metrics.csv"
    reading = read_table(read_source(file), file, exit_code, lines)
    reading.what = "a Lightning CSV log"
    return reading


def read_table(source: Source, path: Path | None, exit_code: int | None, lines: OutputMatcher) -> Reading:  # noqa: ARG001
    table = Table(source)
    folder = path.parent if path is not None else None
    reading = Reading("a CSV log of steps and epochs", folder.name if folder is not None else source.name, iter(()))
    if source.note:
        reading.notes.append(source.note)
    settings = read_settings(folder / "hparams.yaml", reading.notes) if folder is not None else {}
    planned = parse_int(settings.get("max_epochs") or settings.get("epochs"))
    reading.entries = to_entries(_events(_EventBuilder(table, source, planned), reading, exit_code, folder))
    return reading


def _events(
    builder: _EventBuilder, reading: Reading, exit_code: int | None, folder: Path | None
) -> Iterator[events.AnyEvent]:
    yield from opening_events(reading.name)
    yield from builder.build()
    if not builder.rows:
        raise RecordUnknown(
            f"{reading.name} has a table without any readable row.",
            next_step="give the training's log: only it shows what happened before the first logged step",
        )
    if builder.table.note:
        reading.notes.append(builder.table.note)
    seen = {"steps": "as Lightning counts them"}
    missing = {"weight-updates": "a log does not contain weights"}
    if builder.loss:
        seen["losses"] = "as they were logged"
    elif columns := [name for name in _LOSSES if name in builder.table.columns]:
        seen["losses"] = f"{columns[0]}, once per epoch"
    else:
        missing["losses"] = "no column is named train_loss or loss"
    yield events.Coverage(at=0.0, seen=seen, missing=missing, step_source="lightning")
    of = f" of {builder.planned}" if builder.planned else ""
    reading.position = f"epoch {builder.epoch}{of}, step {builder.step}"
    is_complete = builder.planned is not None and 0 < builder.planned <= builder.epoch
    complete = f"its log, which has all {builder.planned} planned epochs" if is_complete else ""
    reading.end = infer_end(exit_code, complete=complete)
    reading.resume_hint = _find_resume_hint(folder) if not reading.end.finished else None
    first = 1 if builder.step else None
    yield reading.end.event(0.0, first_step=first, last_step=builder.step)


class _EventBuilder:
    def __init__(self, table: Table, source: Source, planned: int | None) -> None:
        self.table = table
        self.planned = planned
        self.rows = 0
        self.step = 0
        self.epoch = 0
        """Epochs that were started, counted from 1."""
        self._done = 0
        self._values: dict[str, float] = {}
        self.loss = self._find_step_loss(source)

    def _find_step_loss(self, source: Source) -> str | None:
        """Return the column with the training loss at several steps of one epoch."""
        for name in _LOSSES:
            if name in self.table.columns:
                seen: dict[str, int] = {}
                for row in Table(source).rows():
                    if row[name]:
                        seen[row.get("epoch", "")] = seen.get(row.get("epoch", ""), 0) + 1
                        if seen[row.get("epoch", "")] > 1 or name.endswith("_step"):
                            return name
        return None

    def build(self) -> Iterator[events.AnyEvent]:
        for row in self.table.rows():
            step, epoch = parse_int(row.get("step")), parse_int(row.get("epoch"))
            values = {
                name: value
                for name, cell in row.items()
                if name not in _COUNTS and (value := parse_float(cell)) is not None
            }
            if (step is None and epoch is None) or not values:
                self.table.corrupt += 1
                continue
            self.rows += 1
            if epoch is not None and epoch + 1 > self.epoch:
                yield from self._finish_epoch()
                self.epoch = epoch + 1
            yield from self._steps_event(step, values)
            self._values |= {_normalize(name): value for name, value in values.items() if name != self.loss}
        yield from self._finish_epoch(last=True)

    def _steps_event(self, step: int | None, values: dict[str, float]) -> Iterator[events.AnyEvent]:
        if step is None or step + 1 <= self.step:
            return
        first, self.step = self.step + 1, step + 1
        loss = values.get(self.loss) if self.loss is not None else None
        rates = [value for name, value in values.items() if name.lower().startswith("lr")]
        yield events.Steps(
            at=0.0,
            first=first,
            last=self.step,
            seconds=0.0,
            loss=single_value_stats(loss) if loss is not None else None,
            lr=[rate for rate in rates if rate == rate][:8],  # noqa: PLR0124 - not NaN
        )

    def _finish_epoch(self, *, last: bool = False) -> Iterator[events.AnyEvent]:
        """Emit the epoch. The last epoch is complete only if it has validation or epoch values."""
        values, self._values = self._values, {}
        result = {name: to_json_number(value) for name, value in values.items() if not name.startswith("lr/")}
        if not self.epoch or (last and not result):
            return
        yield events.Epoch(
            at=0.0, epoch=self.epoch, step=self.step, seconds=0.0, batches=0, planned=self.planned, source=SOURCE
        )
        if result:
            yield events.Metrics(at=0.0, step=self.step, epoch=self.epoch, values=result, source=SOURCE)


def _normalize(name: str) -> str:
    return normalize_name(name.removesuffix("_epoch"))


def _find_resume_hint(folder: Path | None) -> ResumeHint | None:
    saved = sorted((folder / "checkpoints").glob("*.ckpt")) if folder is not None else []
    if not saved:
        return None
    newest = max(saved, key=lambda file: file.stat().st_mtime)
    return ResumeHint(f'resume from the checkpoint: trainer.fit(model, ckpt_path="{newest}")')


IMPORTER = Importer(
    title="Lightning",
    files=("metrics.csv",),
    kind="step table",
    read_folder=read_folder,
    read_file=read_table,
    run_folder=re.compile(r"version_(\d+)"),
)
