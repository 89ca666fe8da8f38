"""Finds the lines that somebody wants to be told of, in output as it passes by.

The pump's thread looks, the supervisor's loop asks what was found. Output that holds nothing of interest costs a search for a
few plain texts; only a line that holds one of them is taken apart.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.process.output_log import LINE_CHARACTERS, readable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MAX_LINE = LINE_CHARACTERS
"""Of a longer line this much around the find is looked at and kept, in bytes."""
_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True)
class MatchedLine:
    topic: str
    stream: str
    text: str
    count: int
    """How often the topic has come up so far."""


class Tally:
    """Counts topics, and tells of the 1st, 2nd, 4th, 8th ... time: a line that comes a million times is told 20 times."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def heard(self, topics: Iterable[str], stream: str, text: str) -> list[MatchedLine]:
        told = []
        for topic in topics:
            count = self._counts[topic] = self._counts.get(topic, 0) + 1
            if count & (count - 1) == 0:
                told.append(MatchedLine(topic, stream, text, count))
        return told


class OutputMatcher:
    """What is looked for in the streams of one child."""

    def __init__(self, needles: Sequence[bytes], topics_of: Callable[[str], Iterable[str]]) -> None:
        self.needles = needles
        """In lower case. A line that holds none of them, however written, is of no interest."""
        self.fault: Exception | None = None
        """What went wrong here, if anything. Nothing is looked for from then on; the output itself is not touched."""
        self._topics_of = topics_of
        self._tally = Tally()
        self._heard: list[MatchedLine] = []
        self._lock = threading.Lock()

    def on(self, stream: str) -> StreamMatcher:
        return StreamMatcher(self, stream)

    def take(self) -> list[MatchedLine]:
        """What was found since the last time this was asked."""
        with self._lock:
            heard, self._heard = self._heard, []
        return heard

    def found(self, line: bytes, stream: str) -> None:
        for text in readable_lines(line, 1):
            topics = list(self._topics_of(text))
            if topics:
                with self._lock:
                    self._heard += self._tally.heard(topics, stream, text)


class StreamMatcher:
    """One stream, in the pieces in which it arrives. A progress bar's states, ended by carriage returns, are lines too."""

    def __init__(self, watch: OutputMatcher, stream: str) -> None:
        self._watch = watch
        self._stream = stream
        self._begun = b""

    def feed(self, data: bytes) -> None:
        if self._watch.fault is not None:
            return
        if self._begun:
            data = self._begun + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MAX_LINE:  # not a line that is worth waiting for
            end = len(data)
        self._begun = data[end:]
        try:
            self._look(data, end)
        except Exception as error:  # noqa: BLE001 - the pump must go on: without it the training stands still
            self._watch.fault = error

    def finish(self) -> None:
        """No more will come: what was begun is the last line."""
        if self._begun:
            self.feed(b"\n")

    def _look(self, data: bytes, end: int) -> None:
        lower = data[:end].lower()
        here = [needle for needle in self._watch.needles if needle in lower]
        if not here:
            return
        lines: dict[int, int] = {}
        for needle in here:
            at = lower.find(needle)
            while 0 <= at < end:
                begin, after = _line_around(lower, at)
                lines[begin] = after
                at = lower.find(needle, after)
        for begin, after in sorted(lines.items()):
            self._watch.found(data[begin:after].strip(b"\r\n"), self._stream)


def _line_around(data: bytes, at: int) -> tuple[int, int]:
    """Where the line around this place begins and ends, within the longest that is looked at."""
    before = max(0, at - MAX_LINE // 2)
    begin = max(data.rfind(b"\n", before, at), data.rfind(b"\r", before, at)) + 1
    ending = _LINE_END.search(data, at, at + MAX_LINE // 2)
    return max(begin, before), ending.end() if ending is not None else min(len(data), at + MAX_LINE // 2)
