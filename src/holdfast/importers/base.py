"""What an importer is, and its result: the record as events, and what the events cannot express."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from holdfast.frameworks import all_frameworks
from holdfast.schema import events
from holdfast.storage.journal import Entry

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from holdfast.importers.exits import End
    from holdfast.importers.text import Source
    from holdfast.process.output_matcher import OutputMatcher

MAX_VALUE = 3.5e38
"""No float32 is larger: a larger number is read as infinite."""
MAX_EPOCHS = 10**9


@dataclass(frozen=True)
class ResumeHint:
    """How to resume from a saved checkpoint."""

    text: str
    command: str | None = None


@dataclass
class Reading:
    """A parsed record. Its lists are complete once `entries` has been consumed."""

    what: str
    """A phrase for messages: "a Lightning CSV log"."""
    name: str
    entries: Iterator[Entry]
    notes: list[str] = field(default_factory=list)
    """How it was read: what was left out, how values were interpreted."""
    position: str = ""
    """How far the training got according to the record: "epoch 1, batch 927 of 2244"."""
    end: End | None = None
    """How it ended, as far as the record shows; None if the events contain it."""
    resume_hint: ResumeHint | None = None
    has_log: bool = False
    """The record has the output up to the end. If the output does not show how it ended, nothing else does."""
    is_holdfast_journal: bool = False
    """Holdfast's own journal: the probe was attached, and the record shows how it ended."""
    reference: str | None = None
    """The name for `holdfast resume`, if it is a Holdfast run."""
    is_finished: bool = True
    """False for the journal of a run that is active or lost its supervisor."""


@dataclass(frozen=True)
class Banner:
    """The versions and the device that a framework prints when it starts."""

    torch: str
    device: str

    @property
    def on_mps(self) -> bool:
        return self.device.upper().startswith("MPS")


@dataclass
class EpochProgress:
    epoch: int
    epochs: int
    batch: int
    batches: int
    seconds: float = 0.0
    """As the bar shows; 0 if it does not."""
    values: dict[str, float] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return self.batch >= self.batches


class LogParser(Protocol):
    """Parses what a framework prints, line by line."""

    source: str
    """The source of its events: the name of the framework."""
    current: EpochProgress | None
    final: dict[str, float] | None
    """Metrics of the best checkpoint from the final validation."""

    def take(self, line: str) -> tuple[bool, EpochProgress | None]:
        """Return whether the line belongs to the framework, and an epoch if the line completes one."""

    def flush(self) -> EpochProgress | None:
        """Return the last epoch if it is complete and was not returned yet."""


@dataclass(frozen=True)
class Importer:
    """How the records of one framework are recognized and read."""

    title: str
    files: tuple[str, ...]
    """Names of files: a folder with any of them is a run folder."""
    kind: str
    """The format of its main file, as `detect` classifies it."""
    read_folder: Callable[[Path, int | None, OutputMatcher], Reading]
    read_file: Callable[[Source, Path | None, int | None, OutputMatcher], Reading]
    run_folder: re.Pattern[str] | None = None
    """The name of a run folder in a folder of runs; its first group is a number that increases."""
    settings_file: str | None = None
    """The file in a run folder with the settings of the run, as `key: value` lines."""
    rejected_settings: Mapping[str, str] = field(default_factory=dict)
    """Names that are often mistaken for settings of the framework -> a sentence about it."""
    make_log_parser: Callable[[], LogParser] | None = None
    find_banner: Callable[[str], Banner | None] = lambda _: None


def framework_importers() -> list[Importer]:
    return [importer for framework in all_frameworks() if (importer := framework.importer) is not None]


def to_entries(history: Iterable[events.AnyEvent]) -> Iterator[Entry]:
    """Wrap events as the journal does: events of the probe come from rank 0."""
    for event in history:
        from_probe = isinstance(event, events.ProbeEvent)
        yield Entry(event, 1, 0 if from_probe else None)


def opening_events(name: str, *, platform: str = "") -> list[events.AnyEvent]:
    """Return the first events of a run with one attempt. Its start time is unknown, so it is 0."""
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


def parse_float(text: object) -> float | None:
    """Parse a number, including NaN and infinity. Return None if it is not a number."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isnan(value) or abs(value) <= MAX_VALUE else math.copysign(math.inf, value)


def parse_int(text: object) -> int | None:
    """Parse a count. Return None if it is not a finite number or too large."""
    value = parse_float(text)
    return int(value) if value is not None and math.isfinite(value) and abs(value) <= MAX_EPOCHS else None


def to_json_number(value: float) -> float | str:
    """Return the value as events store it: as a string if it is not finite, because JSON has no NaN."""
    return value if math.isfinite(value) else str(value)


def single_value_stats(value: float) -> events.WindowStats:
    """Return the statistics of a window of steps in which a single value was recorded."""
    if not math.isfinite(value):
        return events.WindowStats(nonfinite=1)
    return events.WindowStats(n=1, mean=value, low=value, high=value, first=value, last=value, zeros=int(value == 0.0))
