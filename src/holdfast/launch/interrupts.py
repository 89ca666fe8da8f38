"""Ctrl-C, SIGTERM and a closed terminal, while a command tries things out: what it started is ended before it exits."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP: its terminal was closed",
}


class Interrupted(BaseException):
    """Not an Exception: nothing in between takes it for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


@contextlib.contextmanager
def ends_what_it_started() -> Iterator[None]:
    """Exits with 128 and the number of the signal. A signal that is ignored, as under nohup, stays so."""

    def interrupt(number: int, _: object) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # what follows takes some seconds, and is not to be cut short
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except Interrupted as why:
        raise typer.Exit(_ended(why)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(why: Interrupted) -> int:
    from holdfast.process.helper_processes import helpers
    from holdfast.render.console import say

    left = helpers.terminate()
    kept = f"what it had started is ended, except: {', '.join(left)}" if left else "what it had started is ended"
    with contextlib.suppress(OSError):
        say(f"interrupted by {SIGNALS[why.number]}; {kept}")
    return 128 + why.number
