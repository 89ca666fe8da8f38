"""Importer for a plain log: anything that a training printed, with progress bars, colours and error messages.

Epochs, positions and losses are numbered as in the log. A line with an epoch and a loss, but no position inside the epoch, is the
result of that epoch. A loss with a step or a position is one value of a window of steps; the other values were not printed.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from holdfast.importers.base import (
    Reading,
    framework_importers,
    opening_events,
    single_value_stats,
    to_entries,
    to_json_number,
)
from holdfast.importers.epochs import normalize_name
from holdfast.importers.exits import MAX_LAST_LINES, infer_end
from holdfast.importers.log_lines import ParsedLine, is_finish_line, parse_line
from holdfast.process.output_log import ESCAPES
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.importers.base import EpochProgress, LogParser
    from holdfast.importers.exits import End
    from holdfast.importers.text import Source
    from holdfast.process.output_matcher import OutputMatcher

MAX_LINE = 2000
BLOCK_CHARACTERS = 1 << 18
MAX_LINES = 100_000
"""Maximum lines to read of one log: 8 MB of ordinary lines. One half from its beginning, the other from its end."""
SOURCE = "log"
_BREAKS = re.compile(r"\r\n?|[\n\x0b\x0c]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


class PlainLog:
    """A log, read once from beginning to end."""

    def __init__(self, source: Source, lines: OutputMatcher) -> None:
        self._source = source
        self._lines = lines
        self._stream = lines.on(SOURCE)
        importers = framework_importers()
        self._parsers = [importer.make_log_parser() for importer in importers if importer.make_log_parser is not None]
        self._epoch = 0
        """The current epoch, counted from 1; 0 if the log has none."""
        self._from_zero: bool | None = None
        self._restarts = 0
        self._epochs: int | None = None
        self._done = 0
        self._step = 0
        self._steps_before = 0
        """Steps of earlier trainings in the same log."""
        self._position: tuple[int, int] = (0, 0)
        self._batches: int | None = None
        self._result: dict[str, float] = {}
        self._lines_since_progress: deque[str] = deque(maxlen=MAX_LAST_LINES)
        """Lines since the last progress of the training."""
        self._last_lines: deque[str] = deque(maxlen=5)
        self._finished = ""
        self.at = 0.0
        """Seconds that the epochs took, as far as the log shows them."""
        self.losses = 0
        self.matches = 0
        self.left_out = 0
        """Lines in the middle that were only scanned for known messages."""
        self.read = 0
        """Lines that are not blank."""
        head = source.head[: 1 << 16]
        plain = ESCAPES.sub("", head)
        self.banner = next((banner for importer in importers if (banner := importer.find_banner(plain))), None)
        self.on_mps = (self.banner is not None and self.banner.on_mps) or _mentions_mps(head)

    @property
    def first_step(self) -> int | None:
        return 1 if self._step else None

    @property
    def has_content(self) -> bool:
        return bool(self._epoch or self._step or any(self._position) or self.losses or self.matches or self._done)

    @property
    def position(self) -> str:
        """How far the training got, as text."""
        epoch, batch = self._position
        parts = []
        if epoch:
            parts.append(f"epoch {epoch}" + (f" of {self._epochs}" if self._epochs else ""))
        if batch:
            parts.append(f"batch {batch}" + (f" of {self._batches}" if self._batches else ""))
        elif self._step:
            parts.append(f"step {self._step}")
        return ", ".join(parts)

    @property
    def last_step(self) -> int:
        return self._step

    @property
    def note(self) -> str:
        notes = []
        if self.left_out:
            notes.append(
                f"Only the first and last {MAX_LINES // 2:,} lines of the log were read, counting each state of a progress bar as a line; "
                f"{self.left_out:,} lines between were only scanned for known messages."
            )
        if self._restarts:
            times = "once" if self._restarts == 1 else f"{self._restarts} times"
            notes.append(
                f"The epoch numbers in the log restart {times}: it has several trainings, or one that went back to an earlier epoch."
            )
        return " ".join(notes)

    def end(self, exit_code: int | None, complete: str = "") -> End:
        """Infer how the training ended. Call it after the whole log was read."""
        words = list(self._lines_since_progress) or list(self._last_lines)
        return infer_end(exit_code, words, finished=self._finished, complete=complete)

    def history(self) -> Iterator[events.AnyEvent]:
        """Yield everything that the log contains about the training."""
        count = sum(part.count("\n") + part.count("\r") for part in (self._source.head, self._source.tail))
        place = 0
        for block in _split_blocks(self._source):
            for line in block:
                place += 1
                if place <= MAX_LINES // 2 or place > count - MAX_LINES // 2:
                    yield from self._take(line)
                else:
                    self.left_out += 1
            yield from self._match_output("\n".join(block))
        self._stream.finish()
        yield from self._match_output("")
        for parser in self._parsers:
            if (done := parser.flush()) is not None:
                yield from self._parsed_epoch_events(parser, done)
        yield from self._finish_epoch()
        for parser in self._parsers:
            if parser.final is not None:
                values = {name: to_json_number(value) for name, value in parser.final.items()}
                yield events.Metrics(at=self.at, step=self._step, values=values, source=f"{SOURCE}, best.pt at the end")

    def output_matches(self) -> Iterator[events.OutputMatched]:
        """Yield only lines that rules recognize: the numbers come from a better source."""
        for event in self.history():
            if isinstance(event, events.OutputMatched):
                yield event

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take(self, line: str) -> Iterator[events.AnyEvent]:
        if not line.strip():
            return
        self.read += 1
        self._last_lines.append(line)
        before = self._position, self._step, self._done
        for parser in self._parsers:
            is_known, done = parser.take(line)
            if done is not None:
                yield from self._parsed_epoch_events(parser, done)
            if is_known:
                yield from self._handle_progress(parser)
                break
        else:
            if (parsed := parse_line(line)) is not None:
                yield from self._handle_line(parsed)
        if is_finish_line(line):
            self._finished = f"a line of its log: {line.strip().rstrip('.')[:120]}"
        if (self._position, self._step, self._done) != before:
            self._lines_since_progress.clear()
            self._finished = ""
        else:
            self._lines_since_progress.append(line)

    def _match_output(self, text: str) -> Iterator[events.OutputMatched]:
        if text:
            self._stream.feed((text + "\n").encode("utf-8", "replace"))
        for match in self._lines.take():
            self.matches += 1
            yield events.OutputMatched(at=self.at, rule=match.topic, stream=SOURCE, text=match.text, count=match.count)

    # --- lines of a framework ----------------------------------------------------------------------------------------

    def _handle_progress(self, parser: LogParser) -> Iterator[events.AnyEvent]:
        current = parser.current
        if current is not None:
            self._epochs, self._batches = current.epochs, current.batches
            yield from self._start_epoch(current.epoch, parser.source)
            self._position = (current.epoch, current.batch)

    def _parsed_epoch_events(self, parser: LogParser, done: EpochProgress) -> Iterator[events.AnyEvent]:
        self._done, self._epochs = done.epoch, done.epochs
        self.losses += len(done.values)
        self.at += done.seconds
        yield self._epoch_event(done.epoch, parser.source, batches=done.batches, seconds=done.seconds)
        values = {name: to_json_number(value) for name, value in done.values.items()}
        yield events.Metrics(at=self.at, step=self._step, epoch=done.epoch, values=values, source=parser.source)

    # --- other lines -------------------------------------------------------------------------------------------------

    def _handle_line(self, parsed: ParsedLine) -> Iterator[events.AnyEvent]:
        if parsed.epoch is not None:
            yield from self._handle_epoch_number(parsed)
        if parsed.is_trainer_dict and parsed.batch is None and not self._epoch:
            parsed.batch, parsed.batches = self._position[1] or None, self._batches
        is_inside_epoch = parsed.batch is not None or parsed.step is not None
        if parsed.batch is not None and (self._epoch, parsed.batch) >= self._position:
            self._position, self._batches = (self._epoch, parsed.batch), parsed.batches
        if parsed.losses:
            self.losses += len(parsed.losses)
            if is_inside_epoch:
                yield from self._steps_event(parsed)
            else:
                self._result |= {normalize_name(name): value for name, value in (parsed.losses | parsed.scores).items()}
                if parsed.epoch is not None:
                    yield from self._finish_epoch(is_complete=True)

    def _handle_epoch_number(self, parsed: ParsedLine) -> Iterator[events.AnyEvent]:
        assert parsed.epoch is not None
        if self._from_zero is None:
            self._from_zero = parsed.epoch == 0
        epoch = parsed.epoch + self._from_zero
        if parsed.epochs:
            self._epochs = max(epoch, parsed.epochs)
        if epoch != self._epoch:
            yield from self._finish_epoch(is_complete=self._done < self._epoch < epoch)
            yield from self._start_epoch(epoch)
            self._position = max(self._position, (epoch, 0))

    def _start_epoch(self, epoch: int, source: str = SOURCE) -> Iterator[events.AnyEvent]:
        """Start an epoch. Earlier epochs are complete, whether the log shows them or not."""
        if epoch < self._epoch:
            self._restarts += 1
            self._done, self._position, self._steps_before = 0, (0, 0), self._step
        if epoch - 1 > self._done:
            self._done = epoch - 1
            yield self._epoch_event(self._done, source)
        self._epoch = epoch

    def _finish_epoch(self, *, is_complete: bool = False) -> Iterator[events.AnyEvent]:
        """Emit the result of the current epoch."""
        result, self._result = self._result, {}
        if is_complete and self._epoch > self._done:
            self._done = self._epoch
            yield self._epoch_event(self._epoch, SOURCE)
        if result:
            values = {name: to_json_number(value) for name, value in result.items()}
            epoch = self._epoch or None
            yield events.Metrics(at=self.at, step=self._step, epoch=epoch, values=values, source=SOURCE)

    def _steps_event(self, parsed: ParsedLine) -> Iterator[events.AnyEvent]:
        step = parsed.step
        if step is None and parsed.batch is not None:
            before = max(0, self._epoch - 1) * (parsed.batches or 0)
            step = before + parsed.batch
        step = None if step is None else step + self._steps_before
        loss = next(
            (value for name, value in parsed.losses.items() if not name.startswith(("val", "eval", "test"))), None
        )
        if step is not None and step > self._step and loss is not None:
            first, self._step = self._step + 1, step
            yield events.Steps(at=self.at, first=first, last=step, seconds=0.0, loss=single_value_stats(loss))

    def _epoch_event(self, epoch: int, source: str, *, batches: int = 0, seconds: float = 0.0) -> events.Epoch:
        return events.Epoch(
            at=self.at,
            epoch=epoch,
            step=self._step,
            seconds=seconds,
            batches=batches,
            planned=self._epochs,
            source=source,
        )


def read_log(source: Source, *, name: str, exit_code: int | None, lines: OutputMatcher) -> Reading:
    log = PlainLog(source, lines)
    reading = Reading("a plain log", name, iter(()), has_log=True)
    if source.note:
        reading.notes.append(source.note)
    reading.entries = to_entries(_log_events(log, reading, exit_code))
    return reading


def _log_events(log: PlainLog, reading: Reading, exit_code: int | None) -> Iterator[events.AnyEvent]:
    yield from opening_events(reading.name, platform="macos" if log.on_mps else "")
    if log.banner is not None:
        yield events.TorchImported(at=0.0, pid=0, torch=log.banner.torch)
    yield from log.history()
    yield _coverage(log)
    reading.position = log.position
    reading.end = log.end(exit_code)
    if not log.has_content and not reading.end.is_known:
        raise RecordUnknown(
            f"{reading.name} has no known content: no epoch, no loss, no traceback, no message that a rule recognizes.",
            next_step="give the log of a training; or pass how it ended with --exit-code N, to diagnose its last lines",
        )
    if log.note:
        reading.notes.append(log.note)
    yield reading.end.event(log.at, first_step=log.first_step, last_step=log.last_step)


def _coverage(log: PlainLog) -> events.Coverage:
    missing = {"weight-updates": "a log does not contain weights"}
    if not log.first_step:
        missing["steps"] = "the log has no numbered step with a loss"
    if not log.losses:
        missing["losses"] = "the log has no losses"
    seen = {kind: "as the log prints them" for kind in ("steps", "losses") if kind not in missing}
    source = "the log's own count" if log.first_step else "none"
    return events.Coverage(at=log.at, seen=seen, missing=missing, step_source=source)


def _mentions_mps(head: str) -> bool:
    return re.search(r"\bdevice\b\W{0,4}['\"(]{0,2}mps\b", head, re.IGNORECASE) is not None


def _split_blocks(source: Source) -> Iterator[list[str]]:
    """Yield lines in blocks of some thousands. Each state of a progress bar is a separate line."""
    for part in (source.head, source.tail):
        at = 0
        while at < len(part):
            end = part.find("\n", at + BLOCK_CHARACTERS)
            if end < 0 or end > at + 4 * BLOCK_CHARACTERS:
                end = min(len(part), at + 4 * BLOCK_CHARACTERS) if len(part) > at + BLOCK_CHARACTERS else len(part)
            yield _split_lines(part[at:end])
            at = end


def _split_lines(text: str) -> list[str]:
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    found = []
    for line in _BREAKS.split(text):
        short = line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} [...] {line[-MAX_LINE // 2 :]}"
        found.append(_CONTROLS.sub("", short).rstrip())
    return found
