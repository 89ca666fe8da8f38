"""The training process of one attempt: start it, follow its output, terminate it.

    with Terminal() as terminal:
        child = ChildProcess.start(command, cwd=..., env=..., stdout_log=..., stderr_log=..., terminal=terminal)
        while not isinstance(event := child.wait(1.0), Exited):
            ...                       # the supervisor may call ask_to_stop(), terminate() or suspend()
        child.terminate(grace=5.0)    # processes that the child left running
        child.close()                 # after this, all output is shown and recorded
        child.last_lines(40)

The child runs in its own session. Each standard stream that is a terminal for the user is a separate pseudo-terminal
for the child. The first of them is its controlling terminal, so prompts, pdb, getpass and Ctrl-C work as usual.

The child is started through subprocess with fork, a few system calls and exec. TIOCSCTTY must be called in the child
(opening a terminal is not enough on macOS), and posix_spawn can neither do that nor change the working directory. A
helper program in between would cost an interpreter start. Fork is safe here because Holdfast runs no other thread at
that point.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from holdfast.probe.holdfast_probe import protocol
from holdfast.process.descendants import Descendants
from holdfast.process.launch_errors import make_launch_error
from holdfast.process.output_log import readable_lines
from holdfast.process.process_events import (
    Continued,
    Exited,
    Forwarded,
    Hangup,
    Interrupt,
    ProcessEvent,
    Suspend,
    Terminate,
)
from holdfast.process.process_identity import send_signal, send_to
from holdfast.process.streams import Streams
from holdfast.process.terminal import STDERR, STDIN, STDOUT, Terminal, to_event
from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.exits import signal_name

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.process.output_matcher import OutputMatcher

KILL_SECONDS = 5.0
"""How long a killed process may take to disappear: the kernel may be busy with its memory or its disk I/O."""
POLL_SECONDS = 0.05
SCAN_SECONDS = 2.0
"""How often the descendants are listed, so that those whose parents exit are already known."""
BLOCKED_SECONDS = 0.25
"""A write that takes longer than this is blocked by the reader."""


class LastOutput(NamedTuple):
    stderr: list[str]
    stdout: list[str]


class ChildProcess:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        streams: Streams,
        terminal: Terminal,
        logs: Mapping[int, Path],
        clock: Callable[[], float],
        attempt: Path | None = None,
    ) -> None:
        """`attempt` is the attempt folder that the child's environment names, if any."""
        self.pid = process.pid
        self.started_at = time.time()
        self.exited: Exited | None = None
        self._process = process
        self._descendants = Descendants(process.pid, attempt)
        self._terminal = terminal
        self._inbox = terminal.inbox
        self._clock = clock
        self._streams = streams
        streams.start_forwarders(logs, clock)
        self._running_since = self._scanned_at = clock()
        self._exit_reported = False
        self._closed = False
        self._suspend_next: Suspend | None = None
        self._follow_foreground()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout_log: Path,
        stderr_log: Path,
        terminal: Terminal,
        clock: Callable[[], float] = time.monotonic,
    ) -> ChildProcess:
        """Start the command. Call this on the main thread, after the previous child was closed.

        Raises CommandNotRunnable.
        """
        try:
            streams = Streams(terminal)
        except OSError as error:
            raise _make_watch_error(error) from error
        try:
            terminal.claim()  # before the child can prompt, or the reply would be echoed twice
            process = streams.start(argv, cwd, env)
        except OSError as error:
            streams.close()
            terminal.release()
            raise make_launch_error(argv, cwd, env, error) from error
        attempt_dir = env.get(protocol.ATTEMPT_DIR)
        logs = {STDOUT: stdout_log, STDERR: stderr_log}
        try:
            return cls(process, streams, terminal, logs, clock, Path(attempt_dir) if attempt_dir else None)
        except BaseException as error:
            # Nothing would watch the child, or even know of it: do not leave it running.
            _kill_now(process)
            with contextlib.suppress(Exception):
                streams.close()
            terminal.release()
            if isinstance(error, (OSError, RuntimeError)):  # RuntimeError: no thread could be started
                raise _make_watch_error(error) from error
            raise

    def wait(self, timeout: float) -> ProcessEvent | None:
        """Return the next event, or None after `timeout` seconds.

        A user action comes before the exit that it caused.
        """
        if self._suspend_next is not None:
            return self._suspend_everything()
        deadline = self._clock() + timeout
        while True:
            self._refresh()
            has_exited = self._poll() and not self._exit_reported
            message = self._inbox.take(0.0 if has_exited else deadline - self._clock())
            event = self._handle_signal(message) if isinstance(message, signal.Signals) else message
            if event is not None:
                self._suspend_next = event if isinstance(event, Suspend) else None
                return event
            if message is None and has_exited:
                self._exit_reported = True
                return self.exited
            if self._clock() >= deadline:
                return None

    def quiet_for(self) -> float:
        """Return the seconds since the last byte of output. Time in which everything was suspended does not count."""
        return self._clock() - max(
            self._running_since, *(source.last_byte_at for source in self._streams.recorded.values())
        )

    def blocked_on_terminal(self) -> bool:
        """Return whether the reader of Holdfast's output (a paused terminal, a full pipe) blocks the child's output."""
        now = self._clock()
        return any(now - (forwarder.showing_since or now) > BLOCKED_SECONDS for forwarder in self._streams.forwarders)

    def at_prompt(self) -> bool:
        """Return whether the child seems to wait for the user: pdb, input(), a password prompt.

        That is: stdin is a terminal, and the last line is not terminated. A progress bar returns to the start of its
        line.
        """
        if not os.isatty(STDIN):
            return False
        last_lines = (source.tail().rpartition(b"\n")[2] for source in self._streams.recorded.values())
        return any(line.strip() and b"\r" not in line for line in last_lines)

    def last_lines(self, lines: int) -> LastOutput:
        """Return the last lines of output in readable form. Complete only after `close`."""
        return LastOutput(
            *(readable_lines(self._streams.recorded[stream].tail(), lines) for stream in (STDERR, STDOUT))
        )

    def watch(self, matcher: OutputMatcher) -> None:
        """Search the child's output, from its first byte on. Complete only after `close`."""
        self._streams.watch(matcher)

    def descendants(self) -> list[int]:
        """Return the pids of the child, which comes first, and of all its living descendants."""
        return [process.pid for process in self.list_alive()]

    def list_alive(self) -> list[psutil.Process]:
        """Return the same as processes. Each knows its start time, which distinguishes it from a reuse of its pid."""
        return self._scan_descendants()

    def ask_to_stop(self) -> None:
        """Do what Ctrl-C would do."""
        if not self._poll():
            with contextlib.suppress(OSError):  # it has just exited, or runs with more privileges than Holdfast (sudo)
                os.killpg(self.pid, signal.SIGINT)

    def wake(self) -> bool:
        """Continue a child that was stopped (SIGSTOP), since it handles no signal until then.

        Return whether it was stopped.
        """
        try:
            stopped = not self._poll() and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except (psutil.Error, OSError):
            return False
        if stopped:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGCONT)
        return stopped

    def suspend(self) -> None:
        self._descendants.stop()

    def resume(self) -> None:
        send_to(self._scan_descendants(), signal.SIGCONT)
        self._running_since = self._clock()

    def terminate(self, grace: float) -> list[int]:
        """Terminate the child and all its descendants: SIGTERM, wait up to `grace` seconds, then SIGKILL.

        Another Ctrl-C or SIGTERM in the meantime cuts the wait short; `wait` reports it afterwards. Return the pids
        that survived even SIGKILL.
        """
        asked: set[psutil.Process] = set()
        deadline = self._clock() + grace
        already_pending = len(self._pending_stop_requests())
        self._signal_unscanned_child(signal.SIGTERM, signal.SIGCONT)
        while (
            self._has_survivors() and self._clock() < deadline and len(self._pending_stop_requests()) <= already_pending
        ):
            new = [process for process in self._scan_descendants() if process not in asked]
            self._send_signals(new, signal.SIGTERM, signal.SIGCONT)
            asked.update(new)
            self._inbox.listen(POLL_SECONDS)
        deadline = self._clock() + KILL_SECONDS
        while self._has_survivors() and self._clock() < deadline:
            self._signal_unscanned_child(signal.SIGKILL)
            self._send_signals(self._scan_descendants(), signal.SIGKILL)
            self._inbox.listen(POLL_SECONDS)
        return [process.pid for process in self._list_survivors()]

    def _has_survivors(self) -> bool:
        return bool(self._list_survivors()) or not self._poll()

    def _send_signals(self, processes: list[psutil.Process], *numbers: signal.Signals) -> None:
        """Send the signals to each process, and to the child by its pid if psutil cannot.

        psutil cannot inspect a process if no file can be opened. The child was not waited for, so its pid cannot be
        reused.
        """
        for process in processes:
            for number in numbers:
                if not send_signal(process, number) and process.pid == self.pid and not self._poll():
                    with contextlib.suppress(OSError):
                        os.kill(self.pid, number)

    def _signal_unscanned_child(self, *numbers: signal.Signals) -> None:
        """Send the signals to a child that psutil could never inspect."""
        if not self._poll() and all(process.pid != self.pid for process in self._scan_descendants()):
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, number)

    def close(self) -> None:
        """Show and record the rest of the output, restore the terminal and stop the threads.

        The time is bounded: this does not wait for a process that outlived the child, nor forever for a blocked
        terminal.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._poll():
                self.terminate(KILL_SECONDS)
            self._streams.close()
        finally:
            self._terminal.release()

    def _handle_signal(self, number: signal.Signals) -> ProcessEvent | None:
        event = to_event(number)
        if number == signal.SIGWINCH:
            self._streams.resize()
        elif number == signal.SIGCONT:  # SIGSTOP cannot be caught, so the shell may have had the terminal since
            self._terminal.claim()
        elif isinstance(event, Forwarded) and not self._poll():
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)
        elif isinstance(event, Hangup) and self._streams.keyboard is not None and self._terminal.is_gone():
            self._streams.keyboard.end_input()
        return event

    def _suspend_everything(self) -> Continued:
        """Stop the child's processes and the supervisor.

        SIGSTOP, since SIGTSTP is discarded if no shell is the parent.
        """
        assert self._suspend_next is not None
        whole_job, self._suspend_next = self._suspend_next.whole_job, None
        stopped_at = self._clock()
        if self._streams.keyboard is not None:
            self._streams.keyboard.pause()
        self.suspend()
        self._terminal.release()
        self._inbox.stop_self(whole_job=whole_job)
        self._follow_foreground()
        self._streams.resize()
        self.resume()
        return Continued(self._clock() - stopped_at)

    def _follow_foreground(self) -> None:
        """Take the keyboard once in the foreground: a shell's `fg` does not notify a job that is already running."""
        keyboard = self._streams.keyboard
        if keyboard is None or (keyboard.is_listening and self._terminal.is_claimed):
            return
        if self._terminal.claim():
            keyboard.listen()

    def _refresh(self) -> None:
        self._follow_foreground()
        if self._clock() - self._scanned_at > SCAN_SECONDS:
            self._scan_descendants()

    def _scan_descendants(self) -> list[psutil.Process]:
        self._scanned_at = self._clock()
        return self._descendants.list_alive()

    def _list_survivors(self) -> list[psutil.Process]:
        exited = self._poll()  # reliable even if no descriptor is free to inspect the child
        return [process for process in self._scan_descendants() if not (exited and process.pid == self.pid)]

    def _pending_stop_requests(self) -> list[ProcessEvent]:
        """Return the requests to stop that `wait` has not returned yet."""
        events = (to_event(m) if isinstance(m, signal.Signals) else m for m in self._inbox.pending())
        return [event for event in events if isinstance(event, (Interrupt, Terminate))]

    def _poll(self) -> bool:
        """Return whether the child has exited. Only the child is waited for, never other children of the supervisor."""
        if self.exited is None and (status := self._process.poll()) is not None:
            if status < 0:
                self.exited = Exited(code=None, signal=signal_name(-status))
            else:
                self.exited = Exited(code=status)
        return self.exited is not None


def _kill_now(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and its descendants. The child was not waited for, so its pid and its session cannot be reused."""
    for descendant in Descendants(process.pid).list_alive():
        send_signal(descendant, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _make_watch_error(error: OSError | RuntimeError) -> CommandNotRunnable:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    is_out_of_descriptors = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return CommandNotRunnable(
        f"Holdfast cannot supervise the command: {reason}. The command is not running.",
        next_step="allow more open files: ulimit -n 1024"
        if is_out_of_descriptors
        else "make room for its logs, then start it again",
    )
