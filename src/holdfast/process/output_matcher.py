"""A search for lines of interest in output as it arrives.

The forwarder's thread searches, and the supervisor's loop fetches the matches. Output without any match costs a search
for a few literal strings; only a line that contains one of them is parsed.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.process.output_log import MAX_LINE_CHARS, readable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MAX_LINE = MAX_LINE_CHARS
"""Of a longer line, this many bytes around the match are inspected and kept."""
_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True)
class MatchedLine:
    topic: str
    stream: str
    text: str
    count: int
    """How often the topic has occurred so far."""


class Tally:
    """Counts topics, and reports occurrence 1, 2, 4, 8 and so on: a line printed a million times is reported 20 times."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, topics: Iterable[str], stream: str, text: str) -> list[MatchedLine]:
        reported = []
        for topic in topics:
            count = self._counts[topic] = self._counts.get(topic, 0) + 1
            if count & (count - 1) == 0:
                reported.append(MatchedLine(topic, stream, text, count))
        return reported


class OutputMatcher:
    """The search in all streams of one child."""

    def __init__(self, needles: Sequence[bytes], find_topics: Callable[[str], Iterable[str]]) -> None:
        self.needles = needles
        """In lower case. A line that contains none of them, in any case, is of no interest."""
        self.fault: Exception | None = None
        """The error of the search, if any. The search stops then; the output itself is not affected."""
        self._find_topics = find_topics
        self._tally = Tally()
        self._matches: list[MatchedLine] = []
        self._lock = threading.Lock()

    def on(self, stream: str) -> StreamMatcher:
        return StreamMatcher(self, stream)

    def take(self) -> list[MatchedLine]:
        """Return the matches since the last call."""
        with self._lock:
            matches, self._matches = self._matches, []
        return matches

    def add_line(self, line: bytes, stream: str) -> None:
        for text in readable_lines(line, 1):
            topics = list(self._find_topics(text))
            if topics:
                with self._lock:
                    self._matches += self._tally.add(topics, stream, text)


class StreamMatcher:
    """The search in one stream. The states of a progress bar, which end in carriage returns, count as lines too."""

    def __init__(self, matcher: OutputMatcher, stream: str) -> None:
        self._matcher = matcher
        self._stream = stream
        self._partial = b""

    def feed(self, data: bytes) -> None:
        if self._matcher.fault is not None:
            return
        if self._partial:
            data = self._partial + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > MAX_LINE:  # too long to wait for its end
            end = len(data)
        self._partial = data[end:]
        try:
            self._scan(data, end)
        except Exception as error:  # noqa: BLE001 - the forwarder must continue: without it the training would block
            self._matcher.fault = error

    def finish(self) -> None:
        """Search the last line, which is not terminated."""
        if self._partial:
            self.feed(b"\n")

    def _scan(self, data: bytes, end: int) -> None:
        lower = data[:end].lower()
        present = [needle for needle in self._matcher.needles if needle in lower]
        if not present:
            return
        lines: dict[int, int] = {}
        for needle in present:
            position = lower.find(needle)
            while 0 <= position < end:
                start, after = _find_line(lower, position)
                lines[start] = after
                position = lower.find(needle, after)
        for start, after in sorted(lines.items()):
            self._matcher.add_line(data[start:after].strip(b"\r\n"), self._stream)


def _find_line(data: bytes, position: int) -> tuple[int, int]:
    """Return the start and end of the line around this position, limited to `MAX_LINE`."""
    lowest = max(0, position - MAX_LINE // 2)
    start = max(data.rfind(b"\n", lowest, position), data.rfind(b"\r", lowest, position)) + 1
    line_end = _LINE_END.search(data, position, position + MAX_LINE // 2)
    return max(start, lowest), line_end.end() if line_end is not None else min(len(data), position + MAX_LINE // 2)
