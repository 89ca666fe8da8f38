"""Importer for the `trainer_state.json` of Transformers: what its Trainer logged, by its own count of optimizer steps.

By default, `logging_nan_inf_filter` replaces a NaN loss by the mean of the losses before it. If all of them were NaN, it logs
0.0, and only `grad_norm: nan` reveals it. Such an entry is read as NaN.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

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
from holdfast.importers.text import read_source
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.importers.text import Source
    from holdfast.process.output_matcher import OutputMatcher

SOURCE = "transformers"
HISTORY_KEY = '"log_history"'
MAX_EVENTS = 2_000_000
MAX_FAILURES = 10_000
LAST_ENTRIES = 20
MAX_ENTRIES = 50_000
"""Maximum entries to read of a history: one half from its beginning, the other from its end."""
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_NOT_VALUES = frozenset(("step", "epoch", "total_flos", "loss", "grad_norm", "learning_rate"))
_SPEED_NAMES = re.compile(r"runtime|per_second|_flos")

Entry = dict[str, Any]


def read_folder(path: Path, exit_code: int | None, lines: OutputMatcher) -> Reading:
    file = path / "trainer_state.json"
    return read_state(read_source(file), file, exit_code, lines)


def read_state(source: Source, path: Path | None, exit_code: int | None, lines: OutputMatcher) -> Reading:  # noqa: ARG001
    name = path.parent.name if path is not None else source.name
    reading = Reading("a Transformers trainer_state.json", name or source.name, iter(()))
    if source.note:
        reading.notes.append(source.note)
    state = _State(source, reading.notes)
    folder = path.parent if path is not None else None
    reading.entries = to_entries(_events(state, reading, exit_code, folder))
    return reading


def _events(state: _State, reading: Reading, exit_code: int | None, folder: Path | None) -> Iterator[events.AnyEvent]:
    yield from opening_events(reading.name)
    builder = _EventBuilder(state.read_int("num_train_epochs"))
    left_out = len(state.history) - MAX_ENTRIES
    if left_out > 0:
        del state.history[MAX_ENTRIES // 2 : -MAX_ENTRIES // 2]
        reading.notes.append(
            f"Only the first and last {MAX_ENTRIES // 2:,} entries of its history were read; {left_out:,} entries between were not."
        )
    for entry in state.history:
        yield from builder.take(entry)
    step = max(builder.step, state.read_int("global_step") or 0)
    if not step and not builder.entries:
        raise RecordUnknown(
            f"{reading.name} has a trainer_state.json in which nothing was logged.",
            next_step="give the training's log: only it shows what happened before the first logged step",
        )
    if builder.masked:
        reading.notes.append(
            f"{builder.masked} entries log a loss of 0 with a gradient norm of NaN: Transformers replaces a NaN loss "
            "(logging_nan_inf_filter), so they are read as NaN."
        )
    seen = {"steps": "as Transformers counts them"}
    missing = {"weight-updates": "a trainer_state.json does not contain weights"}
    if builder.losses:
        seen["losses"] = "as means of what was logged"
    else:
        missing["losses"] = "no loss was logged"
    yield events.Coverage(at=0.0, seen=seen, missing=missing, step_source="transformers")
    max_steps = state.read_int("max_steps")
    reading.position = f"step {step}" + (f" of {max_steps}" if max_steps and max_steps > 0 else "")
    reading.end = infer_end(
        exit_code,
        [_format_entry(entry) for entry in state.history[-LAST_ENTRIES:]],
        finished="the run time of the whole training, which the Trainer logs last" if builder.finished else "",
        complete=f"its count, which has all {max_steps} planned steps" if max_steps and 0 < max_steps <= step else "",
    )
    if not reading.end.finished and folder is not None and _CHECKPOINT.fullmatch(folder.name):
        reading.resume_hint = ResumeHint(
            f'resume from the checkpoint: trainer.train(resume_from_checkpoint="{folder}")'
        )
    yield reading.end.event(builder.at, first_step=1 if step else None, last_step=step)


class _State:
    """The parsed file. If it is truncated and not valid JSON, its entries are read one by one."""

    def __init__(self, source: Source, notes: list[str]) -> None:
        self._text = source.text
        self._fields: Entry = {}
        self.history: list[Entry] = []
        try:
            read = json.loads(self._text) if not source.tail else None
        except (ValueError, RecursionError):
            read = None
        if isinstance(read, dict) and isinstance(read.get("log_history"), list):
            self._fields = read
            self.history = [entry for entry in read["log_history"] if isinstance(entry, dict)]
            return
        self.history = list(_scan_entries(self._text))
        notes.append(
            f"{source.name} is not valid JSON (truncated?): {len(self.history)} entries of its history could be read."
        )
        if not self.history and HISTORY_KEY not in self._text:
            raise RecordUnknown(
                f"{source.name} is not a trainer_state.json: it has no log_history.",
                next_step="give the folder that the Trainer wrote to, one of its checkpoint-N folders, or the log",
            )

    def read_int(self, name: str) -> int | None:
        if name in self._fields:
            return parse_int(self._fields[name])
        found = re.search(rf'^ {{0,2}}"{name}": ?(\d{{1,12}})\b', self._text, re.MULTILINE)
        return parse_int(found[1]) if found else None


def _scan_entries(text: str) -> Iterator[Entry]:
    """Yield every complete entry after `log_history`; skip corrupt text between them."""
    at = text.find(HISTORY_KEY)
    decoder = json.JSONDecoder()
    failures = 0
    for _ in range(MAX_EVENTS):
        at = text.find("{", at) if at >= 0 else -1
        if at < 0:
            return
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # Deep nesting would be retried at each of its levels.
            failures += 1000 if isinstance(error, RecursionError) else 1
            if failures > MAX_FAILURES:
                return
            at += 1
            continue
        if isinstance(entry, dict) and "step" in entry:
            yield entry


class _EventBuilder:
    def __init__(self, planned: int | None) -> None:
        self._planned = planned
        self._epoch = 0
        self.entries = 0
        self.step = 0
        self.losses = 0
        self.masked = 0
        self.finished = False
        self.at = 0.0

    def take(self, entry: Entry) -> Iterator[events.AnyEvent]:
        step = parse_int(entry.get("step"))
        if step is None or step < 0:
            return
        self.entries += 1
        if "train_runtime" in entry:
            self.finished = True
            self.at = _finite(parse_float(entry["train_runtime"])) or 0.0
            return
        yield from self._steps(step, entry)
        values = {
            normalize_name(name): value
            for name, raw in entry.items()
            if name not in _NOT_VALUES and not _SPEED_NAMES.search(name) and (value := parse_float(raw)) is not None
        }
        yield from self._epochs(entry)
        if values:
            result = {name: to_json_number(value) for name, value in values.items()}
            yield events.Metrics(at=0.0, step=step, epoch=self._completed_epoch(entry), values=result, source=SOURCE)

    def _steps(self, step: int, entry: Entry) -> Iterator[events.AnyEvent]:
        loss, norm = parse_float(entry.get("loss")), parse_float(entry.get("grad_norm"))
        if step <= self.step:
            return
        first, self.step = self.step + 1, step
        if loss is not None:
            self.losses += 1
            if loss == 0.0 and norm is not None and math.isnan(norm):
                self.masked += 1
                loss = math.nan
        rate = _finite(parse_float(entry.get("learning_rate")))
        yield events.Steps(
            at=0.0,
            first=first,
            last=step,
            seconds=0.0,
            loss=single_value_stats(loss) if loss is not None else None,
            grad_norm=single_value_stats(norm) if norm is not None else None,
            lr=[rate] if rate is not None else [],
        )

    def _epochs(self, entry: Entry) -> Iterator[events.AnyEvent]:
        """Emit completed epochs. `epoch` is a fraction: every integer that it passes is a completed epoch."""
        epoch = _finite(parse_float(entry.get("epoch")))
        done = int(epoch + 1e-9) if epoch is not None and 0 <= epoch < 1e7 else 0
        if done > self._epoch:
            self._epoch = done
            yield events.Epoch(
                at=0.0, epoch=done, step=self.step, seconds=0.0, batches=0, planned=self._planned, source=SOURCE
            )

    def _completed_epoch(self, entry: Entry) -> int | None:
        """Return the epoch if the entry is at its end. Other evaluations of an epoch are identified by their steps."""
        epoch = _finite(parse_float(entry.get("epoch")))
        return self._epoch if epoch is not None and self._epoch and abs(epoch - self._epoch) < 1e-6 else None


def _format_entry(entry: Entry) -> str:
    """Format an entry as the Trainer prints it."""
    order: tuple[str, ...] = ("loss", "grad_norm", "learning_rate", "epoch")
    names = [name for name in order if name in entry] or [name for name in entry if name != "step"]
    return str({name: entry[name] for name in names})[:400]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


IMPORTER = Importer(
    title="Transformers",
    files=("trainer_state.json",),
    kind="trainer state",
    read_folder=read_folder,
    read_file=read_state,
    run_folder=_CHECKPOINT,
)
