"""The child's standard streams: what each is connected to, and the pumps that serve them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import termios
import time
from typing import TYPE_CHECKING

from holdfast.process.output_forwarder import OutputForwarder, Source
from holdfast.process.output_log import OutputLog
from holdfast.process.sink import Flow, Sink
from holdfast.process.stdin_forwarder import StdinForwarder
from holdfast.process.terminal import STDERR, STDIN, STDOUT, ChildTerminal, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.process.output_matcher import OutputMatcher

DRAIN_SECONDS = 2.0
"""How long a process that outlived the child may still print into the record."""
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
SLOW_TERMINAL_SECONDS = 5.0
"""How long the end of an attempt waits for a terminal that takes nothing. What it did not show is in the record."""


class Streams:
    """A terminal for each stream that is one for the user, a pipe for other output, and other input as it is."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._terminals: dict[int, ChildTerminal] = {}
        self._our_ends: dict[int, int] = {}
        self._child_ends: dict[int, int] = {}
        self._flow = Flow()
        self.recorded: dict[int, Source] = {}
        self.pumps: list[OutputForwarder] = []
        self.keyboard: StdinForwarder | None = None
        for stream in (STDIN, STDOUT, STDERR):
            if os.isatty(stream):
                pair = ChildTerminal(terminal.modes(stream), terminal.window())
                self._terminals[stream] = pair
                self._our_ends[stream], self._child_ends[stream] = pair.our_end, pair.child_end
            elif stream != STDIN:
                self._our_ends[stream], self._child_ends[stream] = os.pipe()

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts the command, with the first of its terminals as its controlling one. No pump may run yet."""
        controlling = min(self._terminals, default=None)
        inbox = self._terminal.inbox

        def between_fork_and_exec() -> None:
            inbox.leave_to_child()
            if controlling is not None:
                with contextlib.suppress(OSError):  # better without a controlling terminal than not at all
                    fcntl.ioctl(controlling, termios.TIOCSCTTY, 0)

        with inbox.held_back_for_fork():
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=self._child_ends.get(STDIN),
                stdout=self._child_ends[STDOUT],
                stderr=self._child_ends[STDERR],
                start_new_session=True,
                preexec_fn=between_fork_and_exec,  # noqa: PLW1509 - child_process.py says why this fork is safe
            )
        for stream in [stream for stream in self._child_ends if stream not in self._terminals]:
            os.close(self._child_ends.pop(stream))
        return process

    def open_pumps(self, logs: Mapping[int, Path], clock: Callable[[], float]) -> None:
        """What the child's terminal echoes is shown but not recorded."""
        by_place: dict[tuple[int, int], list[Source]] = {}
        for stream, our_end in self._our_ends.items():
            source = Source(stream, our_end, OutputLog(logs[stream]) if stream in logs else None)
            os.set_blocking(our_end, False)
            place = os.fstat(stream)
            by_place.setdefault((place.st_dev, place.st_ino), []).append(source)
            if stream in logs:
                self.recorded[stream] = source
        self.pumps = [
            OutputForwarder(sources, Sink(sources[-1].stream), self._flow, clock) for sources in by_place.values()
        ]
        if STDIN in self._terminals:
            self.keyboard = StdinForwarder(self._terminal, self._terminals[STDIN], self._flow)

    def watch(self, watch: OutputMatcher) -> None:
        """Have what the child prints looked through for lines of interest, from its first byte on."""
        for stream, source in self.recorded.items():
            source.watch(watch.on(NAMES[stream]))

    def resize(self) -> None:
        """The controlling terminal comes last: it sends the child SIGWINCH, and by then all must have the new size."""
        window = self._terminal.window()
        if window is not None:
            for stream in sorted(self._terminals, reverse=True):
                self._terminals[stream].resize(window)

    def close(self) -> None:
        """Shows and records what is left, within bounds, and ends the pumps."""
        if self.keyboard is not None:
            self.keyboard.close()
        self._drain()
        # A pump that could not be ended (it hangs in the kernel) keeps its descriptors: their numbers must not come again.
        ended = [pump.closed() for pump in self.pumps]
        if all(ended):
            for end in [*self._our_ends.values(), *self._child_ends.values()]:
                os.close(end)

    def _drain(self) -> None:
        began = time.monotonic()
        for pump in self.pumps:
            pump.finish()
        for pump in self.pumps:
            while pump.thread.is_alive():
                waited = time.monotonic() - began
                if waited > (SLOW_TERMINAL_SECONDS if pump.showing_since else DRAIN_SECONDS):
                    pump.stop_showing()
                    pump.thread.join(DRAIN_SECONDS)
                    pump.abandon()
                    break
                pump.thread.join(0.02)
