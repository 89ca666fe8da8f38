"""Ctrl-C, SIGTERM and a closed terminal during checks and trials: terminate the helper processes, then exit."""

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
    signal.SIGHUP: "SIGHUP: the terminal was closed",
}


class Interrupted(BaseException):
    """A signal arrived. This is not an Exception, so that no `except Exception` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


@contextlib.contextmanager
def terminate_helpers_on_signal() -> Iterator[None]:
    """Terminate all helper processes on a signal, and exit with 128 + its number.

    Ignored signals (nohup) stay ignored.
    """

    def interrupt(number: int, _: object) -> NoReturn:
        for handled in before:
            signal.signal(handled, signal.SIG_IGN)  # termination takes some seconds and must not be interrupted
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except Interrupted as interruption:
        raise typer.Exit(_terminate_helpers(interruption)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate_helpers(interruption: Interrupted) -> int:
    from holdfast.process.helper_processes import helpers
    from holdfast.render.console import say

    left = helpers.terminate()
    result = "all processes that Holdfast had started were terminated"
    if left:
        result += f", except: {', '.join(left)}"
    with contextlib.suppress(OSError):
        say(f"interrupted by {SIGNALS[interruption.number]}; {result}")
    return 128 + interruption.number
