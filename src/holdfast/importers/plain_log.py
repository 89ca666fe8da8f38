"""A plain log: whatever a training printed, with its progress bars, colours and last words.

Epochs, positions and losses are taken as the log counts them. A line with an epoch and a loss and no position inside the
epoch is that epoch's result; a loss beside a step or a position is one value of a window whose other values nobody printed.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from holdfast.importers.base import Reading, as_entries, one_loss, opening, told
from holdfast.importers.epochs import plain_name
from holdfast.importers.exits import KEPT_LINES, end_of
from holdfast.importers.log_lines import ParsedLine, parse_line, says_finished
from holdfast.importers.ultralytics_console import Console, banner_in
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.importers.exits import End
    from holdfast.importers.text import Source
    from holdfast.importers.ultralytics_console import EpochSoFar
    from holdfast.process.output_matcher import OutputMatcher

MAX_LINE = 2000
BLOCK_CHARACTERS = 1 << 18
MAX_LINES = 100_000
"""Of one log: 8 MB of ordinary lines. The first half of them from its beginning, the other from its end."""
SOURCE = "log"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]{0,500}(?:\x07|\x1b\\|$)|\x1b.?")
_BREAKS = re.compile(r"\r\n?|[\n\x0b\x0c]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


class PlainLog:
    """A log, read once from its beginning to its end."""

    def __init__(self, source: Source, lines: OutputMatcher) -> None:
        self._source = source
        self._lines = lines
        self._stream = lines.on(SOURCE)
        self._console = Console()
        self._epoch = 0
        """The epoch under way, counted from 1; 0 where the log names none."""
        self._from_zero: bool | None = None
        self._begun_again = 0
        self._epochs: int | None = None
        self._done = 0
        self._step = 0
        self._steps_before = 0
        """Of earlier trainings in the same log."""
        self._place: tuple[int, int] = (0, 0)
        self._batches: int | None = None
        self._result: dict[str, float] = {}
        self._after: deque[str] = deque(maxlen=KEPT_LINES)
        """Lines since the training last came further."""
        self._newest: deque[str] = deque(maxlen=5)
        self._finished = ""
        self.at = 0.0
        """Seconds that the log's epochs took, where it says so."""
        self.losses = 0
        self.heard = 0
        self.left_out = 0
        """Lines in the middle that were looked through for known words only."""
        self.read = 0
        """Lines with something on them."""
        head = source.head[: 1 << 16]
        self.banner = banner_in(_ESCAPES.sub("", head))
        self.on_mps = (self.banner is not None and self.banner.on_mps) or _says_mps(head)

    @property
    def first_step(self) -> int | None:
        return 1 if self._step else None

    @property
    def says_anything(self) -> bool:
        return bool(self._epoch or self._step or any(self._place) or self.losses or self.heard or self._done)

    @property
    def position(self) -> str:
        """How far it came, as a person would say it."""
        epoch, batch = self._place
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
        told = []
        if self.left_out:
            told.append(
                f"The first and the last {MAX_LINES // 2:,} lines of the log were read, each state of a progress bar as one; "
                f"{self.left_out:,} between were only looked through for known words."
            )
        if self._begun_again:
            times = "once" if self._begun_again == 1 else f"{self._begun_again} times"
            told.append(
                f"The log counts its epochs from lower numbers again {times}: several trainings, or one that went back."
            )
        return " ".join(told)

    def end(self, exit_code: int | None, finished: str = "") -> End:
        """Call it when all was read."""
        words = list(self._after) or list(self._newest)
        return end_of(exit_code, words, finished=self._finished or finished)

    def history(self) -> Iterator[events.AnyEvent]:
        """Everything that the log says of the training."""
        count = sum(part.count("\n") + part.count("\r") for part in (self._source.head, self._source.tail))
        place = 0
        for block in _blocks(self._source):
            for line in block:
                place += 1
                if place <= MAX_LINES // 2 or place > count - MAX_LINES // 2:
                    yield from self._take(line)
                else:
                    self.left_out += 1
            yield from self._printed("\n".join(block))
        self._stream.finish()
        yield from self._printed("")
        if (done := self._console.rest()) is not None:
            yield from self._epoch_of(done)
        yield from self._epoch_over()
        if self._console.final is not None:
            values = {name: told(value) for name, value in self._console.final.items()}
            yield events.Metrics(at=self.at, step=self._step, values=values, source=f"{SOURCE}, best.pt at the end")

    def words_only(self) -> Iterator[events.OutputMatched]:
        """Only what rules asked to be told of: the numbers are known from somewhere better."""
        for event in self.history():
            if isinstance(event, events.OutputMatched):
                yield event

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take(self, line: str) -> Iterator[events.AnyEvent]:
        if not line.strip():
            return
        self.read += 1
        self._newest.append(line)
        came = self._place, self._step, self._done
        known, done = self._console.take(line)
        if done is not None:
            yield from self._epoch_of(done)
        if known:
            yield from self._follow_console()
        elif (said := parse_line(line)) is not None:
            yield from self._follow(said)
        if says_finished(line):
            self._finished = f"its own words: {line.strip().rstrip('.')[:120]}"
        if (self._place, self._step, self._done) != came:
            self._after.clear()
            self._finished = ""
        else:
            self._after.append(line)

    def _printed(self, text: str) -> Iterator[events.OutputMatched]:
        if text:
            self._stream.feed((text + "\n").encode("utf-8", "replace"))
        for heard in self._lines.take():
            self.heard += 1
            yield events.OutputMatched(at=self.at, rule=heard.topic, stream=SOURCE, text=heard.text, count=heard.count)

    # --- Ultralytics' own lines --------------------------------------------------------------------------------------

    def _follow_console(self) -> Iterator[events.AnyEvent]:
        now = self._console.now
        if now is not None:
            self._epochs, self._batches = now.epochs, now.batches
            yield from self._reach(now.epoch, "ultralytics")
            self._place = (now.epoch, now.batch)

    def _epoch_of(self, done: EpochSoFar) -> Iterator[events.AnyEvent]:
        self._done, self._epochs = done.epoch, done.epochs
        self.losses += len(done.values)
        self.at += done.seconds
        yield self._epoch_event(done.epoch, "ultralytics", batches=done.batches, seconds=done.seconds)
        values = {name: told(value) for name, value in done.values.items()}
        yield events.Metrics(at=self.at, step=self._step, epoch=done.epoch, values=values, source="ultralytics")

    # --- anybody's lines ---------------------------------------------------------------------------------------------

    def _follow(self, said: ParsedLine) -> Iterator[events.AnyEvent]:
        if said.epoch is not None:
            yield from self._epoch_named(said)
        if said.by_trainer and said.batch is None and not self._epoch:
            said.batch, said.batches = self._place[1] or None, self._batches
        inside = said.batch is not None or said.step is not None
        if said.batch is not None and (self._epoch, said.batch) >= self._place:
            self._place, self._batches = (self._epoch, said.batch), said.batches
        if said.losses:
            self.losses += len(said.losses)
            if inside:
                yield from self._loss_inside(said)
            else:
                self._result |= {plain_name(name): value for name, value in (said.losses | said.scores).items()}
                if said.epoch is not None:
                    yield from self._epoch_over(whole=True)

    def _epoch_named(self, said: ParsedLine) -> Iterator[events.AnyEvent]:
        assert said.epoch is not None
        if self._from_zero is None:
            self._from_zero = said.epoch == 0
        epoch = said.epoch + self._from_zero
        if said.epochs:
            self._epochs = max(epoch, said.epochs)
        if epoch != self._epoch:
            yield from self._epoch_over(whole=self._done < self._epoch < epoch)
            yield from self._reach(epoch)
            self._place = max(self._place, (epoch, 0))

    def _reach(self, epoch: int, source: str = SOURCE) -> Iterator[events.AnyEvent]:
        """It counts this epoch as begun: those before are done, whether the log shows them or not."""
        if epoch < self._epoch:
            self._begun_again += 1
            self._done, self._place, self._steps_before = 0, (0, 0), self._step
        if epoch - 1 > self._done:
            self._done = epoch - 1
            yield self._epoch_event(self._done, source)
        self._epoch = epoch

    def _epoch_over(self, *, whole: bool = False) -> Iterator[events.AnyEvent]:
        """The epoch under way has given its result."""
        result, self._result = self._result, {}
        if whole and self._epoch > self._done:
            self._done = self._epoch
            yield self._epoch_event(self._epoch, SOURCE)
        if result:
            values = {name: told(value) for name, value in result.items()}
            epoch = self._epoch or None
            yield events.Metrics(at=self.at, step=self._step, epoch=epoch, values=values, source=SOURCE)

    def _loss_inside(self, said: ParsedLine) -> Iterator[events.AnyEvent]:
        step = said.step
        if step is None and said.batch is not None:
            before = max(0, self._epoch - 1) * (said.batches or 0)
            step = before + said.batch
        step = None if step is None else step + self._steps_before
        loss = next(
            (value for name, value in said.losses.items() if not name.startswith(("val", "eval", "test"))), None
        )
        if step is not None and step > self._step and loss is not None:
            first, self._step = self._step + 1, step
            yield events.Steps(at=self.at, first=first, last=step, seconds=0.0, loss=one_loss(loss))

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
    reading.entries = as_entries(_whole_log(log, reading, exit_code))
    return reading


def _whole_log(log: PlainLog, reading: Reading, exit_code: int | None) -> Iterator[events.AnyEvent]:
    yield from opening(reading.name, platform="macos" if log.on_mps else "")
    if log.banner is not None:
        yield events.TorchImported(at=0.0, pid=0, torch=log.banner.torch)
    yield from log.history()
    yield events.Coverage(at=log.at, kinds=_seen(log), step_source="the log's own count" if log.first_step else "none")
    reading.position = log.position
    reading.end = log.end(exit_code)
    if not log.says_anything and not reading.end.known:
        raise RecordUnknown(
            f"{reading.name} is text in which nothing is known: no epoch, no loss, no traceback, no words that a rule knows.",
            next_step="give the log of a training; or say how it ended, with --exit-code N, to have its last words judged",
        )
    if log.note:
        reading.notes.append(log.note)
    yield reading.end.event(log.at, first_step=log.first_step, last_step=log.last_step)


def _seen(log: PlainLog) -> dict[str, str]:
    printed = "seen: as the log prints them"
    return {
        "steps": printed if log.first_step else "not seen: the log numbers no step that has a loss beside it",
        "losses": printed if log.losses else "not seen: the log prints none",
        "weight-updates": "not seen: a log does not hold weights",
    }


def _says_mps(head: str) -> bool:
    return re.search(r"\bdevice\b\W{0,4}['\"(]{0,2}mps\b", head, re.IGNORECASE) is not None


def _blocks(source: Source) -> Iterator[list[str]]:
    """Lines as a terminal would show them, each state of a progress bar one of its own, some thousands at a time."""
    for part in (source.head, source.tail):
        at = 0
        while at < len(part):
            end = part.find("\n", at + BLOCK_CHARACTERS)
            if end < 0 or end > at + 4 * BLOCK_CHARACTERS:
                end = min(len(part), at + 4 * BLOCK_CHARACTERS) if len(part) > at + BLOCK_CHARACTERS else len(part)
            yield _lines_of(part[at:end])
            at = end


def _lines_of(text: str) -> list[str]:
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    found = []
    for line in _BREAKS.split(text):
        short = line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} [...] {line[-MAX_LINE // 2 :]}"
        found.append(_CONTROLS.sub("", short).rstrip())
    return found
