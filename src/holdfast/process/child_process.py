"""One life of the training process, seen from outside: it starts, it prints, it ends.

    with Terminal() as terminal:
        child = ChildProcess.start(command, cwd=..., env=..., stdout_log=..., stderr_log=..., terminal=terminal)
        while not isinstance(notice := child.wait(1.0), Exited):
            ...                       # ask_to_stop(), end(), suspend() as the supervisor sees fit
        child.end(grace=5.0)          # what it left behind
        child.close()                 # from here on all output is shown and recorded
        child.last_words(40)

The child has a session of its own. Each of its standard streams that is a terminal for the user is a terminal of its own
for the child; the first of these is its controlling terminal, so that prompts, pdb, getpass and Ctrl-C work as ever.

It is started by fork, a few system calls and exec, through subprocess: TIOCSCTTY has to be called in the child (opening a
terminal is not enough on macOS), posix_spawn can neither do that nor change the folder, and a helper program between us
and the command would cost the start of an interpreter. Fork is safe here because no thread of ours runs at that point.
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
from holdfast.process.launch_errors import not_runnable
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
from holdfast.process.terminal import STDERR, STDIN, STDOUT, Terminal, event_of
from holdfast.schema.errors import CommandNotRunnable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.process.output_matcher import OutputMatcher

KILL_SECONDS = 5.0
"""How long a killed process may take to be gone: the kernel may be busy with its memory or its disk."""
ENDING_LOOK_SECONDS = 0.05
LOOK_SECONDS = 2.0
"""How often the offspring is looked at, so that those are known whose parents die."""
BLOCKED_SECONDS = 0.25
"""A write that takes longer than this is held up by the one who should read."""


class LastWords(NamedTuple):
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
        """`attempt` is the folder that the child's environment names, where it names one."""
        self.pid = process.pid
        self.started_at = time.time()
        self.exited: Exited | None = None
        self._process = process
        self._offspring = Descendants(process.pid, attempt)
        self._terminal = terminal
        self._inbox = terminal.inbox
        self._clock = clock
        self._streams = streams
        streams.open_pumps(logs, clock)
        self._moving_since = self._looked_at = clock()
        self._exit_told = False
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
        """Raises CommandNotRunnable. On the main thread, with the former child closed."""
        try:
            streams = Streams(terminal)
        except OSError as error:
            raise _not_watchable(error) from error
        try:
            terminal.claim()  # before the child can ask anything, or the answer would be echoed twice
            process = streams.start(argv, cwd, env)
        except OSError as error:
            streams.close()
            terminal.release()
            raise not_runnable(argv, cwd, env, error) from error
        named = env.get(protocol.ATTEMPT_DIR)
        logs = {STDOUT: stdout_log, STDERR: stderr_log}
        try:
            return cls(process, streams, terminal, logs, clock, Path(named) if named else None)
        except BaseException as error:
            # Nobody would watch it, or even know of it: it does not stay behind.
            _end_at_once(process)
            with contextlib.suppress(Exception):
                streams.close()
            terminal.release()
            if isinstance(error, (OSError, RuntimeError)):  # the latter: no room for a thread
                raise _not_watchable(error) from error
            raise

    def wait(self, timeout: float) -> ProcessEvent | None:
        """The next notice, or None when there was none for so long. What the user did comes before the exit it caused."""
        if self._suspend_next is not None:
            return self._stand_still()
        deadline = self._clock() + timeout
        while True:
            self._look_around()
            has_exited = self._poll() and not self._exit_told
            message = self._inbox.take(0.0 if has_exited else deadline - self._clock())
            notice = self._take_signal(message) if isinstance(message, signal.Signals) else message
            if notice is not None:
                self._suspend_next = notice if isinstance(notice, Suspend) else None
                return notice
            if message is None and has_exited:
                self._exit_told = True
                return self.exited
            if self._clock() >= deadline:
                return None

    def quiet_for(self) -> float:
        """Seconds since the last byte of output; the time in which everything stood still does not count."""
        return self._clock() - max(
            self._moving_since, *(source.last_byte_at for source in self._streams.recorded.values())
        )

    def blocked_on_terminal(self) -> bool:
        """Whether the one who should read our output (a paused terminal, a full pipe) holds up the child's."""
        now = self._clock()
        return any(now - (pump.showing_since or now) > BLOCKED_SECONDS for pump in self._streams.pumps)

    def at_prompt(self) -> bool:
        """Whether it looks as if the user is being asked something: pdb, input(), a password. A terminal that can answer,
        and a line that was begun and not ended; a progress bar returns to the beginning of its line.
        """
        if not os.isatty(STDIN):
            return False
        begun = (source.tail().rpartition(b"\n")[2] for source in self._streams.recorded.values())
        return any(line.strip() and b"\r" not in line for line in begun)

    def last_words(self, lines: int) -> LastWords:
        """The last lines of output, made readable. Complete only after `close`."""
        return LastWords(*(readable_lines(self._streams.recorded[stream].tail(), lines) for stream in (STDERR, STDOUT)))

    def watch(self, watch: OutputMatcher) -> None:
        """Have what it prints looked through, from its first byte on. Complete only after `close`."""
        self._streams.watch(watch)

    def descendants(self) -> list[int]:
        """The pids of the child, which comes first, and of all it brought into the world, as far as they live."""
        return [process.pid for process in self.living()]

    def living(self) -> list[psutil.Process]:
        """The same, as processes: each knows when it started, and so what has its pid later from itself."""
        return self._look_at_offspring()

    def ask_to_stop(self) -> None:
        """What Ctrl-C would do."""
        if not self._poll():
            with contextlib.suppress(OSError):  # it has just ended, or runs with rights that we do not have (sudo)
                os.killpg(self.pid, signal.SIGINT)

    def wake(self) -> bool:
        """Have it go on where it was stopped (SIGSTOP): until then it hears nothing. False where it was not."""
        try:
            stopped = not self._poll() and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except (psutil.Error, OSError):
            return False
        if stopped:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGCONT)
        return stopped

    def suspend(self) -> None:
        self._offspring.stop()

    def resume(self) -> None:
        send_to(self._look_at_offspring(), signal.SIGCONT)
        self._moving_since = self._clock()

    def end(self, grace: float) -> list[int]:
        """Ends the child and all it brought into the world: asks, waits so long, then kills.

        A further Ctrl-C or SIGTERM meanwhile cuts the wait short; `wait` tells of it afterwards. Returns the pids that even
        SIGKILL could not end.
        """
        asked: set[psutil.Process] = set()
        deadline = self._clock() + grace
        impatient = len(self._impatience())
        self._send_unseen(signal.SIGTERM, signal.SIGCONT)
        while self._is_left() and self._clock() < deadline and len(self._impatience()) <= impatient:
            new = [process for process in self._look_at_offspring() if process not in asked]
            self._send(new, signal.SIGTERM, signal.SIGCONT)
            asked.update(new)
            self._inbox.listen(ENDING_LOOK_SECONDS)
        deadline = self._clock() + KILL_SECONDS
        while self._is_left() and self._clock() < deadline:
            self._send_unseen(signal.SIGKILL)
            self._send(self._look_at_offspring(), signal.SIGKILL)
            self._inbox.listen(ENDING_LOOK_SECONDS)
        return [process.pid for process in self._left_over()]

    def _is_left(self) -> bool:
        return bool(self._left_over()) or not self._poll()

    def _send(self, processes: list[psutil.Process], *numbers: signal.Signals) -> None:
        """Where no file can be opened, no process can be looked at. The child itself was not waited for: its pid is its own."""
        for process in processes:
            for number in numbers:
                if not send_signal(process, number) and process.pid == self.pid and not self._poll():
                    with contextlib.suppress(OSError):
                        os.kill(self.pid, number)

    def _send_unseen(self, *numbers: signal.Signals) -> None:
        """To a child that could never be looked at."""
        if not self._poll() and all(process.pid != self.pid for process in self._look_at_offspring()):
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, number)

    def close(self) -> None:
        """Shows and records the rest of the output, gives the terminal back, ends the threads.

        Within bounds: a process that outlived the child is not waited for, nor for ever a terminal that takes nothing.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._poll():
                self.end(KILL_SECONDS)
            self._streams.close()
        finally:
            self._terminal.release()

    def _take_signal(self, number: signal.Signals) -> ProcessEvent | None:
        notice = event_of(number)
        if number == signal.SIGWINCH:
            self._streams.resize()
        elif number == signal.SIGCONT:  # after a SIGSTOP that we could not see coming, the shell had the terminal
            self._terminal.claim()
        elif isinstance(notice, Forwarded) and not self._poll():
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)
        elif isinstance(notice, Hangup) and self._streams.keyboard is not None and self._terminal.gone():
            self._streams.keyboard.end_input()
        return notice

    def _stand_still(self) -> Continued:
        """Stops the child's processes and ourselves. SIGSTOP, since SIGTSTP is discarded where no shell is the parent."""
        assert self._suspend_next is not None
        whole_job, self._suspend_next = self._suspend_next.whole_job, None
        stopped_at = self._clock()
        if self._streams.keyboard is not None:
            self._streams.keyboard.pause()
        self.suspend()
        self._terminal.release()
        self._inbox.stop_here(whole_job=whole_job)
        self._follow_foreground()
        self._streams.resize()
        self.resume()
        return Continued(self._clock() - stopped_at)

    def _follow_foreground(self) -> None:
        """Takes the keyboard when it is ours: a shell's `fg` does not tell a running job that it has become so."""
        keyboard = self._streams.keyboard
        if keyboard is None or (keyboard.listening and self._terminal.claimed):
            return
        if self._terminal.claim():
            keyboard.listen()

    def _look_around(self) -> None:
        self._follow_foreground()
        if self._clock() - self._looked_at > LOOK_SECONDS:
            self._look_at_offspring()

    def _look_at_offspring(self) -> list[psutil.Process]:
        self._looked_at = self._clock()
        return self._offspring.living()

    def _left_over(self) -> list[psutil.Process]:
        exited = self._poll()  # which is certain, also where no descriptor is free to look at it
        return [process for process in self._look_at_offspring() if not (exited and process.pid == self.pid)]

    def _impatience(self) -> list[ProcessEvent]:
        """The requests to stop that wait to be told."""
        notices = (event_of(m) if isinstance(m, signal.Signals) else m for m in self._inbox.waiting())
        return [notice for notice in notices if isinstance(notice, (Interrupt, Terminate))]

    def _poll(self) -> bool:
        """Whether the child has exited. Only it is waited for: other children of ours are not our business here."""
        if self.exited is None and (status := self._process.poll()) is not None:
            if status < 0:
                self.exited = Exited(code=None, signal=_name(-status))
            else:
                self.exited = Exited(code=status)
        return self.exited is not None


def _end_at_once(process: subprocess.Popen[bytes]) -> None:
    """A child that was not waited for yet: its pid and its session are its own."""
    for below in Descendants(process.pid).living():
        send_signal(below, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _not_watchable(error: OSError | RuntimeError) -> CommandNotRunnable:
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    descriptors = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return CommandNotRunnable(
        f"The command cannot be watched: {said}. It is not left running.",
        next_step="allow more open files: ulimit -n 1024"
        if descriptors
        else "make room for its logs, then start it again",
    )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"
