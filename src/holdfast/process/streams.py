"""The child's standard streams: what each is connected to, and the threads that forward them."""

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
"""How long the output of a process that outlived the child is still recorded."""
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
SLOW_TERMINAL_SECONDS = 5.0
"""How long the end of an attempt waits for a blocked terminal. Output that was not shown is in the log."""


class Streams:
    """The child's streams: a pseudo-terminal for each stream that is a terminal, and a pipe for other output.

    Other input is inherited unchanged.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._terminals: dict[int, ChildTerminal] = {}
        self._parent_ends: dict[int, int] = {}
        self._child_ends: dict[int, int] = {}
        self._flow = Flow()
        self.recorded: dict[int, Source] = {}
        self.forwarders: list[OutputForwarder] = []
        self.keyboard: StdinForwarder | None = None
        for stream in (STDIN, STDOUT, STDERR):
            if os.isatty(stream):
                pair = ChildTerminal(terminal.modes(stream), terminal.window())
                self._terminals[stream] = pair
                self._parent_ends[stream], self._child_ends[stream] = pair.parent_end, pair.child_end
            elif stream != STDIN:
                self._parent_ends[stream], self._child_ends[stream] = os.pipe()

    def start(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the command, with its first terminal as the controlling terminal. No forwarder may run yet."""
        controlling = min(self._terminals, default=None)
        inbox = self._terminal.inbox

        def between_fork_and_exec() -> None:
            inbox.reset_in_child()
            if controlling is not None:
                with contextlib.suppress(OSError):  # running without a controlling terminal is better than not running
                    fcntl.ioctl(controlling, termios.TIOCSCTTY, 0)

        with inbox.block_during_fork():
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=self._child_ends.get(STDIN),
                stdout=self._child_ends[STDOUT],
                stderr=self._child_ends[STDERR],
                start_new_session=True,
                preexec_fn=between_fork_and_exec,  # noqa: PLW1509 - child_process.py explains why this fork is safe
            )
        for stream in [stream for stream in self._child_ends if stream not in self._terminals]:
            os.close(self._child_ends.pop(stream))
        return process

    def start_forwarders(self, logs: Mapping[int, Path], clock: Callable[[], float]) -> None:
        """Start the threads. What the child's terminal echoes is shown but not recorded."""
        by_destination: dict[tuple[int, int], list[Source]] = {}
        for stream, parent_end in self._parent_ends.items():
            source = Source(stream, parent_end, OutputLog(logs[stream]) if stream in logs else None)
            os.set_blocking(parent_end, False)
            target = os.fstat(stream)
            by_destination.setdefault((target.st_dev, target.st_ino), []).append(source)
            if stream in logs:
                self.recorded[stream] = source
        self.forwarders = [
            OutputForwarder(sources, Sink(sources[-1].stream), self._flow, clock) for sources in by_destination.values()
        ]
        if STDIN in self._terminals:
            self.keyboard = StdinForwarder(self._terminal, self._terminals[STDIN], self._flow)

    def watch(self, matcher: OutputMatcher) -> None:
        """Search the child's output for lines of interest, from its first byte on."""
        for stream, source in self.recorded.items():
            source.watch(matcher.on(NAMES[stream]))

    def resize(self) -> None:
        """Apply the window size to all terminals.

        The controlling terminal comes last: it sends SIGWINCH to the child, and by then all must have the new size.
        """
        window = self._terminal.window()
        if window is not None:
            for stream in sorted(self._terminals, reverse=True):
                self._terminals[stream].resize(window)

    def close(self) -> None:
        """Show and record the remaining output in bounded time, and stop the forwarders."""
        if self.keyboard is not None:
            self.keyboard.close()
        self._drain()
        # A forwarder that could not be stopped (it hangs in the kernel) keeps its descriptors: they must not be reused.
        closed = [forwarder.try_close() for forwarder in self.forwarders]
        if all(closed):
            for end in [*self._parent_ends.values(), *self._child_ends.values()]:
                os.close(end)

    def _drain(self) -> None:
        started = time.monotonic()
        for forwarder in self.forwarders:
            forwarder.finish()
        for forwarder in self.forwarders:
            while forwarder.thread.is_alive():
                waited = time.monotonic() - started
                if waited > (SLOW_TERMINAL_SECONDS if forwarder.showing_since else DRAIN_SECONDS):
                    forwarder.stop_showing()
                    forwarder.thread.join(DRAIN_SECONDS)
                    forwarder.abandon()
                    break
                forwarder.thread.join(0.02)
