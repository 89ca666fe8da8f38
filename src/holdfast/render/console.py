"""The only way from Holdfast to a terminal: nothing that it prints can move the cursor, set a title or hide text.

Names, messages and errors quote files, folders and programs of other people. Each line passes `printable`; a rich console
passes every piece of text that it renders; JSON escapes what it would leave as it is.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.render.text import printable
from holdfast.schema.json_text import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

MAX_LINE = 20_000


def print_line(text: str = "", *, file: TextIO | None = None) -> None:
    """One line, also where a name in it has line breaks."""
    print(printable(text, MAX_LINE), file=file, flush=True)


def print_lines(lines: Iterable[str], *, file: TextIO | None = None) -> None:
    for line in lines:
        print_line(line, file=file)


def say(text: str, by: str = "holdfast") -> None:
    """A line to the user that is no result: on stderr."""
    print_line(f"{by}: {text}", file=sys.stderr)


def say_error(text: str) -> None:
    """A sentence, and what stands below it in lines of its own."""
    first, *rest = text.split("\n")
    say(first)
    print_lines(rest, file=sys.stderr)


def print_json(value: Any) -> None:
    print(to_json(value), flush=True)


def show_progress(text: str) -> None:
    """On a terminal only: a line on stderr that the next one takes the place of."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(text, 200)}\r")
        sys.stderr.flush()


def console(file: TextIO) -> Console:
    """A rich console whose text cannot act on the terminal; colours and cursor movements of rich's own are left."""
    made: Console = _console_type()(file=file, highlight=False)
    return made


@cache
def _console_type() -> Any:
    from rich.console import Console  # noqa: PLC0415 - rich takes long to import, and most commands print lines
    from rich.segment import Segment  # noqa: PLC0415

    class SafeConsole(Console):
        def render(self, *args: Any, **named: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **named):
                yield segment if segment.control else Segment(_safe(segment.text), segment.style)

    return SafeConsole


def _safe(text: str) -> str:
    """Text as it is printed, with its line breaks and spaces."""
    return (
        text
        if text.isascii() and text.isprintable()
        else "\n".join(printable(part, MAX_LINE) for part in text.split("\n"))
    )
