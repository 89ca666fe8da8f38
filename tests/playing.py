"""A user at a terminal, and a supervisor that is watched: what the tests of the child process play with."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil

STUB = str(Path(__file__).with_name("supervisor_stub.py"))
PATIENCE = 60.0


def python(code):
    """A command that runs the code unbuffered.

    Code that waits for a signal must wait in short pieces: Python notes a signal and acts on it later, so that one which
    arrives just before a long sleep does not end it.
    """
    return [sys.executable, "-u", "-c", code]


class Played:
    """A supervisor with its child, started with each of its streams as "tty", "pipe" or a file descriptor."""

    def __init__(self, folder, command, *, stdin="tty", stdout="tty", stderr="tty", launcher=None, window=(24, 80)):
        self.folder = folder
        self.screen = bytearray()
        """What the user's terminal showed."""
        self.piped = {"stdout": bytearray(), "stderr": bytearray()}
        self.told = []
        self._untold = b""
        self.keyboard, terminal = pty.openpty()
        self.resize(*window)
        self._tell, tell = os.pipe()
        orders, self._orders = os.pipe()
        os.set_inheritable(tell, True)
        os.set_inheritable(orders, True)
        self._pipes = {}
        ends = {}
        for name, kind in {"stdin": stdin, "stdout": stdout, "stderr": stderr}.items():
            if kind == "tty":
                ends[name] = terminal
            elif kind == "pipe":
                self._pipes[name], ends[name] = os.pipe()
            else:
                ends[name] = kind
        argv = [sys.executable, STUB, str(folder), str(tell), str(orders), *command]
        self.process = subprocess.Popen(
            launcher(argv) if launcher else argv,
            **ends,
            close_fds=False,
            start_new_session=True,
            preexec_fn=lambda: sit_down(terminal),  # noqa: PLW1509 - no threads here
        )
        for end in {terminal, tell, orders, *(ends[name] for name in self._pipes)}:
            os.close(end)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pid = next((fact["pid"] for fact in self.told if fact["what"] == "started"), None)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            if pid is not None:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        for end in (self.keyboard, self._tell, self._orders, *self._pipes.values()):
            with contextlib.suppress(OSError):
                os.close(end)

    def pump(self, condition, *, reading=("screen", "stdout", "stderr")):
        """Reads all that comes until the condition holds, and returns what it returned."""
        deadline = time.monotonic() + PATIENCE
        while not (result := condition()):
            assert time.monotonic() < deadline, (
                f"not seen; screen: {bytes(self.screen[-2000:])!r}, piped: {self.piped}, told: {self.told[-10:]}"
            )
            sources = {self._tell: "told", **({self.keyboard: "screen"} if "screen" in reading else {})}
            sources |= {end: name for name, end in self._pipes.items() if name in reading}
            sources.pop(-1, None)
            for end in select.select(list(sources), [], [], 1.0)[0]:
                self._read(end, sources[end])
        return result

    def _read(self, end, name):
        try:
            data = os.read(end, 1 << 16)
        except OSError:
            data = b""
        if name == "told":
            *lines, self._untold = (self._untold + data).split(b"\n")
            self.told += [json.loads(line) for line in lines]
            if not data:
                assert self.told[-1]["what"] == "over", f"the supervisor died: {self.screen.decode()[-3000:]}"
        elif name == "screen":
            self.screen += data
        else:
            self.piped[name] += data

    def see(self, text, *, times=1):
        """Waits until the user's terminal has shown the text so many times."""
        wanted = text if isinstance(text, bytes) else text.encode()
        self.pump(lambda: self.screen.count(wanted) >= times)

    def hear(self, what, **options):
        """Waits until the supervisor has told of this, and returns it with its facts."""
        return self.pump(lambda: next((fact for fact in self.told if fact["what"] == what), None), **options)

    def order(self, *words, **options):
        """Has the supervisor do something, and returns its answer."""
        before = sum(fact["what"] == "done" for fact in self.told)
        os.write(self._orders, " ".join(words).encode() + b"\n")
        done = lambda: [fact for fact in self.told if fact["what"] == "done"][before:]  # noqa: E731
        return self.pump(done, **options)[0]["answer"]

    def type(self, keys):
        os.write(self.keyboard, keys if isinstance(keys, bytes) else keys.encode())

    def resize(self, rows, columns):
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def finish(self):
        """Waits until all is over, and returns how the child exited."""
        self.hear("over")
        for name in self._pipes:
            end = self._pipes[name]
            self.pump(lambda end=end, name=name: self._at_end(end, name))
        self.process.wait(PATIENCE)
        return self.hear("Exited")

    def _at_end(self, end, name):
        before = len(self.piped[name])
        self._read(end, name)
        return len(self.piped[name]) == before

    def names(self):
        return [fact["what"] for fact in self.told]

    def log(self, name):
        return (self.folder / f"{name}.log").read_bytes()


def sit_down(terminal):
    """At a terminal of one's own, with no signal ignored: a test runner in the background ignores Ctrl-C."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def has_ended(pid):
    """Also when nobody has taken note of it: a container often has no init that does."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def modes(terminal):
    """How a terminal is set, without the state of its line that the kernel keeps in the same place."""
    return termios.tcgetattr(terminal)[:4]
