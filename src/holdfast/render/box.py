"""A box of labelled rows, wrapped between words.

A word that is wider than the box is folded, so that the border stays intact. Such a word is usually a path or command that people copy,
so it is printed once more below the box, in one piece.
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
"""Label, style, text."""
MIN_WIDTH = 24
"""Minimum width of the text, however narrow the terminal is."""


class Box:
    """Print it with `soft_wrap=True`; otherwise the console cuts off long words."""

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
            for n, line in enumerate(wrap(text, room)):
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


def wrap(text: str, width: int) -> Iterator[str]:
    """Yield lines of whole words. A word that is wider than a line starts a new line and is folded."""
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
