"""All terminal output of Holdfast. Nothing printed here can move the cursor, set a title or hide text.

Names, messages and errors quote untrusted files, folders and programs. Each line goes through `printable`, a rich console
filters every segment that it renders, and JSON escapes control characters.
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
    """Print one line, even if a name in it contains line breaks."""
    print(printable(text, MAX_LINE), file=file, flush=True)


def print_lines(lines: Iterable[str], *, file: TextIO | None = None) -> None:
    for line in lines:
        print_line(line, file=file)


def say(text: str, by: str = "holdfast") -> None:
    """Print a message for the user on stderr. Results go to stdout."""
    print_line(f"{by}: {text}", file=sys.stderr)


def say_error(text: str) -> None:
    """Print an error message; its following lines are printed below it."""
    first, *rest = text.split("\n")
    say(first)
    print_lines(rest, file=sys.stderr)


def print_json(value: Any) -> None:
    print(to_json(value), flush=True)


def show_progress(text: str) -> None:
    """On a terminal, print a line on stderr that the next line overwrites."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(text, 200)}\r")
        sys.stderr.flush()


def console(file: TextIO) -> Console:
    """Return a rich console whose text cannot control the terminal. Rich's own colours and cursor movements still work."""
    made: Console = _console_type()(file=file, highlight=False)
    return made


@cache
def _console_type() -> Any:
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import, and most commands print plain lines
    from rich.segment import Segment  # noqa: PLC0415

    class SafeConsole(Console):
        def render(self, *args: Any, **named: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **named):
                yield segment if segment.control else Segment(_safe(segment.text), segment.style)

    return SafeConsole


def _safe(text: str) -> str:
    """Make text safe to print; keep line breaks and spaces."""
    return (
        text
        if text.isascii() and text.isprintable()
        else "\n".join(printable(part, MAX_LINE) for part in text.split("\n"))
    )
