"""Importer for an Ultralytics run folder: `results.csv`, `args.yaml`, `weights/`, and a log if the folder has one.

The table has one row per epoch. Its `time` is the seconds since the process started, and restarts when a run is resumed.
Its losses are means over the epoch: they become metrics (`train/box_loss`), never steps, because no steps were recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.console import Console, find_banner
from holdfast.frameworks.ultralytics.plan_settings import REJECTED
from holdfast.importers.base import Importer, Reading, ResumeHint, opening_events, parse_int, to_entries
from holdfast.importers.epochs import EpochEvents, EpochRow, parse_epoch_row
from holdfast.importers.exits import infer_end
from holdfast.importers.plain_log import PlainLog
from holdfast.importers.settings import read_settings
from holdfast.importers.table import Table
from holdfast.importers.text import read_source
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.integrity import is_truncated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.importers.exits import End
    from holdfast.importers.settings import Settings
    from holdfast.importers.text import Source
    from holdfast.process.output_matcher import OutputMatcher

SOURCE = "ultralytics"
FITNESS = (
    "metrics/mAP50-95(M)",
    "metrics/mAP50-95(B)",
    "metrics/mAP50-95",
    "metrics/mAP_0.5:0.95",
    "metrics/accuracy_top1",
)
"""The metric that its patience monitors, by task."""
LOGS = ("*.log", "*.out", "*.err")


class Folder:
    """The parts of a run folder; each may be missing."""

    def __init__(self, path: Path | None, table: Source | None, lines: OutputMatcher) -> None:
        self.path = path
        self.table = Table(table) if table is not None else None
        self.notes = [table.note] if table is not None and table.note else []
        self.settings: Settings = read_settings(path / "args.yaml", self.notes) if path is not None else {}
        self.log = self._find_log(lines)

    def _find_log(self, lines: OutputMatcher) -> PlainLog | None:
        """Return the newest log in the folder."""
        found = [file for pattern in LOGS for file in self.path.glob(pattern)] if self.path is not None else []
        written = [(status.st_mtime, file) for file in found if file.is_file() and (status := file.stat()).st_size]
        if not written:
            return None
        file, between = max(written)[1], lines.on("log")
        try:
            source = read_source(file, scan=lambda text: between.feed(text.encode("utf-8", "replace")))
        except RecordUnknown as error:
            self.notes.append(error.what)
            return None
        self.notes += [f"{file.name} in the folder was read as the run's log.", *([source.note] if source.note else [])]
        return PlainLog(source, lines)

    @property
    def planned(self) -> int | None:
        return parse_int(self.settings.get("epochs"))

    @property
    def device(self) -> str:
        return self.settings.get("device", "").lower()

    @property
    def last_checkpoint(self) -> Path | None:
        last = self.path / "weights" / "last.pt" if self.path is not None else None
        return last if last is not None and last.is_file() else None


def read_folder(path: Path, exit_code: int | None, lines: OutputMatcher) -> Reading:
    """Read a run folder. An unreadable table is an error only if there is no log."""
    table, table_error = None, None
    if (path / "results.csv").is_file():
        try:
            table = read_source(path / "results.csv")
            Table(table)
        except RecordUnknown as error:
            table, table_error = None, error
    folder = Folder(path, table, lines)
    if table_error is not None:
        if folder.log is None:
            raise table_error
        folder.notes.insert(0, table_error.what)
    return _make_reading(folder, "an Ultralytics run folder", path.resolve().name, exit_code)


def read_table(source: Source, path: Path | None, exit_code: int | None, lines: OutputMatcher) -> Reading:
    """Read a table. If it is in a run folder, the rest of the folder is used too."""
    run_folder = path.parent if path is not None and (path.parent / "args.yaml").is_file() else None
    folder = Folder(run_folder, source, lines)
    name = run_folder.name if run_folder is not None else source.name
    return _make_reading(folder, "a results table with one row per epoch", name, exit_code)


def _make_reading(folder: Folder, what: str, name: str, exit_code: int | None) -> Reading:
    reading = Reading(what, name, iter(()), notes=folder.notes, has_log=folder.log is not None)
    reading.entries = to_entries(_events(folder, reading, exit_code))
    return reading


def _events(folder: Folder, reading: Reading, exit_code: int | None) -> Iterator[events.AnyEvent]:
    log = folder.log
    on_mps = "mps" in folder.device or (log is not None and log.on_mps)
    yield from opening_events(reading.name, platform="macos" if on_mps else "")
    if log is not None and log.banner is not None:
        yield events.TorchImported(at=0.0, pid=0, torch=log.banner.torch)
    builder = _EventBuilder(folder.settings)
    if folder.table is not None:
        yield from builder.build(folder.table, folder.planned)
        if not builder.rows and log is None:
            raise RecordUnknown(
                f"{reading.name} has a table without any epoch.",
                next_step="give the run's log: only it shows what happened in the first epoch",
            )
        reading.notes += builder.notes(folder.table)
    if log is not None:
        yield from log.history() if not builder.rows else log.output_matches()
    yield _coverage(builder, log)
    reading.position = builder.position or (log.position if log is not None else "")
    reading.end = _infer_end(folder, builder, exit_code)
    if builder.stopped_early and reading.end.finished:
        what = "ultralytics ended the training before its last epoch"
        yield events.ProbeNote(at=builder.at, what=what, detail=builder.stopped_early, code="stopped-early")
    reading.resume_hint = _find_resume_hint(folder, reading.end, reading.notes)
    yield reading.end.event(max(builder.at, log.at if log is not None else 0.0))


def _infer_end(folder: Folder, builder: _EventBuilder, exit_code: int | None) -> End:
    complete = ""
    if builder.planned and builder.epoch >= builder.planned:
        complete = f"its table, which has all {builder.planned} planned epochs"
    elif builder.stopped_early:
        complete = f"its patience, which was exhausted: {builder.stopped_early}"
    if folder.log is not None:
        return folder.log.end(exit_code, complete)
    return infer_end(exit_code, complete=complete)


class _EventBuilder:
    """Builds events from the epochs of a table."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._events: EpochEvents | None = None
        self._best: tuple[float, int] | None = None
        self.planned: int | None = None
        self.first: EpochRow | None = None

    def build(self, table: Table, planned: int | None) -> Iterator[events.AnyEvent]:
        self.planned = planned
        for cells in table.rows():
            row = parse_epoch_row(cells)
            if row is None:
                table.corrupt += 1
                continue
            if self._events is None:
                self.first = row
                self._events = EpochEvents(source=SOURCE, planned=planned, from_zero=row.epoch == 0)
            yield from self._events.take(row)
            self._track_best(row)
        if self._events is not None:
            yield from self._events.flush()

    def _track_best(self, row: EpochRow) -> None:
        fitness = next((row.values[name] for name in FITNESS if name in row.values), None)
        if fitness is not None and (self._best is None or fitness > self._best[0] or self._best[0] == 0.0):
            self._best = (fitness, row.epoch)

    @property
    def rows(self) -> int:
        return self._events.rows if self._events is not None else 0

    @property
    def epoch(self) -> int:
        return self._events.epoch if self._events is not None else 0

    @property
    def at(self) -> float:
        return self._events.at if self._events is not None else 0.0

    @property
    def position(self) -> str:
        return f"epoch {self.epoch}" + (f" of {self.planned}" if self.planned else "") if self.rows else ""

    @property
    def stopped_early(self) -> str:
        """Why it stopped early, in the format of the framework, if the epochs since the best one reach its patience."""
        patience = parse_int(self._settings.get("patience"))
        if not patience or self._best is None or not self.planned or self.epoch >= self.planned:
            return ""
        if self.epoch - self._best[1] < patience:
            return ""
        return f"epoch {self.epoch} of {self.planned}, patience {patience}"

    def notes(self, table: Table) -> list[str]:
        found = [table.note] if table.note else []
        if self._events is not None:
            found += [
                f"The training was resumed after epoch {n}: the time in the table restarts."
                for n in self._events.resumed_after
            ]
            for span in self._events.shared:
                found.append(f"The table has no separate times for epochs {span}: their mean is used for each.")
        if self.first is not None and self.first.epoch == 0:
            found.append("The table numbers epochs from 0; here they are numbered from 1.")
        return found


def _coverage(builder: _EventBuilder, log: PlainLog | None) -> events.Coverage:
    seen = {"ultralytics": "in its own table" if builder.rows else "in its own folder"}
    missing = {
        "steps": "the table has one row per epoch" if builder.rows else "no results table was written",
        "weight-updates": "a table does not contain weights",
    }
    if builder.rows:
        seen |= {"losses": "as means of epochs", "metrics": "in its own table"}
    elif log is not None and log.losses:
        seen["losses"] = "as the log prints them"
    else:
        missing["losses"] = "no epoch was recorded"
    return events.Coverage(at=builder.at, seen=seen, missing=missing, step_source="none")


def _find_resume_hint(folder: Folder, end: End, notes: list[str]) -> ResumeHint | None:
    """Return how to resume: Ultralytics resumes from last.pt, unless it had finished."""
    last = folder.last_checkpoint
    if last is None or end.finished:
        return None
    try:
        is_damaged = is_truncated(last)
    except OSError as error:
        notes.append(f"{last.name} cannot be read: {error.strerror}.")
        return None
    if is_damaged:
        notes.append(
            "weights/last.pt is incomplete, because it was being written when the training ended. It cannot be used to resume."
        )
        return None
    command = f"holdfast run -- yolo train resume model={shell_quote(last)}"
    return ResumeHint("resume from weights/last.pt, which is intact", command)


IMPORTER = Importer(
    title="Ultralytics",
    files=("results.csv", "args.yaml"),
    kind="epoch table",
    read_folder=read_folder,
    read_file=read_table,
    settings_file="args.yaml",
    rejected_settings={name: f"{name} is not an Ultralytics argument: {why}." for name, why in REJECTED.items()},
    make_log_parser=Console,
    find_banner=find_banner,
)
