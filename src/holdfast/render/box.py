"""The frame around what a run came to: rows with a label each, broken between words.

A word that is longer than the frame is wide is folded, so that the edge stays whole. What people copy is such a path or command, which
no terminal joins again when two halves stand between borders: so it stands once more below the frame, in one piece.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

Row = tuple[str, str, str]
"""A label, its style, and what it says."""
MIN_WIDTH = 24
"""Columns that text has, however narrow the terminal is."""


class Box:
    """To be printed with `soft_wrap=True`, or the console would cut off what runs on."""

    def __init__(self, title: str, rows: Iterable[Row], colour: str) -> None:
        self._title = title
        self._rows = list(rows)
        self._colour = colour

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inside = options.max_width - 4
        labels = max((cell_len(label) for label, _, _ in self._rows), default=0)
        room = max(MIN_WIDTH, inside - labels - 2)
        title = Text(f"  {self._title}  ")
        title.truncate(max(0, inside - 1), overflow="ellipsis")
        yield _edge(Text.assemble("╭─", title, "─" * (inside + 1 - title.cell_len), "╮"), self._colour)
        for label, style, text in self._rows:
            for n, line in enumerate(wrapped(text, room)):
                shown = Text(label if n == 0 else "", style=style)
                shown.pad_right(labels + 2 - shown.cell_len)
                left = inside - labels - 2 - cell_len(line)
                end = Text(" " * left + " │", style=self._colour) if left >= 0 else Text("")
                yield _edge(Text.assemble(("│ ", self._colour), shown, line, end), "")
        yield _edge(Text(f"╰{'─' * (inside + 2)}╯"), self._colour)
        for word in dict.fromkeys(word for _, _, text in self._rows for word in text.split() if cell_len(word) > room):
            yield _edge(Text(word.rstrip(",;:")), "")


def _edge(line: Text, style: str) -> Text:
    line.style = style
    line.no_wrap, line.overflow = True, "ignore"
    return line


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of whole words; one that fits into no line begins its own and is folded."""
    line = ""
    for word in re.findall(r"\s*\S+", text):
        if line and cell_len(line + word) > width:
            yield line
            line = word.lstrip()
        else:
            line += word
        if cell_len(line) > width:
            *full, line = chop_cells(line, width)
            yield from full
    yield line
