"""Importer for Holdfast's own journal: a run folder, its journal.jsonl, or a copy of it. Recorded conclusions are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.importers.base import Reading
from holdfast.schema import events
from holdfast.schema.errors import JournalUnreadable, RecordUnknown
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import Entry, Tail, replay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_ATTEMPTS = 1000
CONCLUSIONS = (events.FindingMade, events.RunEnded)
"""Results of the rules at that time; the current rules are run instead."""


def read_run(folder: Path) -> Reading:
    run = RunFolder(folder.resolve())
    reading = _make_reading(replay(run), run.name)
    reading.reference = run.reference
    return reading


def read_copy(path: Path) -> Reading:
    """Read a journal outside its folder, without the events of the ranks."""
    reading = _make_reading(_read_alone(path), path.name)
    reading.notes.append(
        "Only the supervisor's journal was read: the events of the training's processes are in its folder."
    )
    return reading


def _make_reading(entries: Iterator[Entry], name: str) -> Reading:
    reading = Reading("a Holdfast journal", name, iter(()), is_holdfast_journal=True, is_finished=False)
    reading.entries = _without_conclusions(_translate_errors(entries), reading)
    return reading


def _translate_errors(entries: Iterator[Entry]) -> Iterator[Entry]:
    try:
        yield from entries
    except JournalUnreadable as error:
        raise RecordUnknown(error.what, next_step=error.next_step, look_at=error.look_at) from error


def _without_conclusions(entries: Iterator[Entry], reading: Reading) -> Iterator[Entry]:
    attempts, name = 0, reading.name
    for entry in entries:
        reading.is_finished = isinstance(entry.event, events.RunEnded) or (
            reading.is_finished and not isinstance(entry.event, (events.AttemptStarted, events.RunContinued))
        )
        if isinstance(entry.event, events.AttemptStarted):
            attempts += 1
            if attempts > MAX_ATTEMPTS:
                raise RecordUnknown(
                    f"{name} has more than {MAX_ATTEMPTS} attempts: no Holdfast run has that many.",
                    next_step="give an unmodified Holdfast journal",
                )
        if not isinstance(entry.event, CONCLUSIONS):
            yield entry
    if not attempts:
        raise RecordUnknown(
            f"{name} is a journal without a started attempt.",
            next_step="give the folder of the run: the file of a single rank is not enough",
        )


def _read_alone(path: Path) -> Iterator[Entry]:
    tail, attempt = Tail(path), 0
    while not tail.at_end:
        for event in tail.read():
            if isinstance(event, events.AttemptStarted):
                attempt = event.attempt
            rank = 0 if isinstance(event, events.ProbeEvent) else None
            yield Entry(event, attempt, rank)
