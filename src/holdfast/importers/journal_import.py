"""Holdfast's own journal: a run folder, its journal.jsonl, or a copy of one. Read again without what was concluded from it."""

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
"""What rules of that day said; today's are asked instead."""


def read_run(folder: Path) -> Reading:
    run = RunFolder(folder.resolve())
    reading = _reading(replay(run), run.name)
    reading.reference = run.reference
    return reading


def read_copy(path: Path) -> Reading:
    """A journal that was taken out of its folder: what the ranks wrote is not with it."""
    reading = _reading(_alone(path), path.name)
    reading.notes.append(
        "Only the supervisor's journal was read: what the training's own processes wrote lies in its folder."
    )
    return reading


def _reading(entries: Iterator[Entry], name: str) -> Reading:
    reading = Reading("a journal of Holdfast", name, iter(()), own=True, over=False)
    reading.entries = _facts(_readable(entries), reading)
    return reading


def _readable(entries: Iterator[Entry]) -> Iterator[Entry]:
    try:
        yield from entries
    except JournalUnreadable as error:
        raise RecordUnknown(error.what, next_step=error.next_step, look_at=error.look_at) from error


def _facts(entries: Iterator[Entry], reading: Reading) -> Iterator[Entry]:
    attempts, name = 0, reading.name
    for entry in entries:
        reading.over = isinstance(entry.event, events.RunEnded) or (
            reading.over and not isinstance(entry.event, (events.AttemptStarted, events.RunContinued))
        )
        if isinstance(entry.event, events.AttemptStarted):
            attempts += 1
            if attempts > MAX_ATTEMPTS:
                raise RecordUnknown(
                    f"{name} tells of more than {MAX_ATTEMPTS} attempts: no run of Holdfast has so many.",
                    next_step="give a journal as Holdfast wrote it",
                )
        if not isinstance(entry.event, CONCLUSIONS):
            yield entry
    if not attempts:
        raise RecordUnknown(
            f"{name} is a journal in which no attempt was started.",
            next_step="give the folder of the run: a single rank's file does not stand for it",
        )


def _alone(path: Path) -> Iterator[Entry]:
    tail, attempt = Tail(path), 0
    while not tail.at_end:
        for event in tail.read():
            if isinstance(event, events.AttemptStarted):
                attempt = event.attempt
            rank = 0 if isinstance(event, events.ProbeEvent.__args__) else None  # type: ignore[attr-defined]
            yield Entry(event, attempt, rank)
