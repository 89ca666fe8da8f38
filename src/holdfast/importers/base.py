"""What a reader gives back: the record as events, and what they cannot say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.schema import events
from holdfast.storage.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.importers.exits import End

MAX_VALUE = 3.5e38
"""No float32 is larger: beyond it a training's number is taken for infinite."""
MAX_EPOCHS = 10**9


@dataclass(frozen=True)
class ResumeHint:
    """How to go on from what was saved."""

    text: str
    command: str | None = None


@dataclass
class Reading:
    """A record, understood. Its lists are complete when `entries` has been read to its end."""

    what: str
    """For a sentence: "a run folder of Ultralytics"."""
    name: str
    entries: Iterator[Entry]
    notes: list[str] = field(default_factory=list)
    """How it was read: what was left out, what was taken for what."""
    position: str = ""
    """How far it came, as the record says: "epoch 1, batch 927 of 2244"."""
    end: End | None = None
    """How it ended, as far as the record tells; None where events say it themselves."""
    resume_hint: ResumeHint | None = None
    has_log: bool = False
    """It shows what was printed up to the end: where that does not say how it ended, nothing else does."""
    own: bool = False
    """Holdfast's own journal: the probe was there, and the record knows how it ended."""
    reference: str | None = None
    """What `holdfast resume` calls it by, where it is a run of Holdfast's."""
    over: bool = True
    """False for a journal of a run that goes on, or whose supervisor is gone."""


def as_entries(history: Iterable[events.AnyEvent]) -> Iterator[Entry]:
    """As the journal gives them: what the probe would have written comes from rank 0."""
    for event in history:
        from_probe = isinstance(event, events.ProbeEvent.__args__)  # type: ignore[attr-defined]
        yield Entry(event, 1, 0 if from_probe else None)


def opening(name: str, *, platform: str = "") -> list[events.AnyEvent]:
    """A run of one attempt, at the beginning of a time that nobody recorded."""
    return [
        events.RunStarted(
            at=0.0,
            schema=events.SCHEMA,
            run=name,
            command=[],
            cwd="",
            holdfast="",
            platform=platform,
            python="",
            supervisor=0,
        ),
        events.AttemptStarted(at=0.0, attempt=1, pid=0, command=[]),
    ]


def number(text: object) -> float | None:
    """A number as a record writes it, not finite ones too; None where it is none."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isnan(value) or abs(value) <= MAX_VALUE else math.copysign(math.inf, value)


def whole(text: object) -> int | None:
    """A count, within reason."""
    value = number(text)
    return int(value) if value is not None and math.isfinite(value) and abs(value) <= MAX_EPOCHS else None


def told(value: float) -> float | str:
    """As an event holds it: JSON has no NaN."""
    return value if math.isfinite(value) else str(value)


def one_loss(value: float) -> events.WindowStats:
    """A single value in a window of steps: the others were not recorded."""
    if not math.isfinite(value):
        return events.WindowStats(nonfinite=1)
    return events.WindowStats(n=1, mean=value, low=value, high=value, first=value, last=value, zeros=int(value == 0.0))
