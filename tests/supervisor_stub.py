"""Plays the supervisor: runs a command as a ChildProcess and does what it is told over a pipe.

Run as: supervisor_stub.py FOLDER TELL_FD ORDER_FD COMMAND...
It writes one JSON line for each notice and each answer to TELL_FD, and reads orders, one a line, from ORDER_FD.
"""

import dataclasses
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast.process.child_process import ChildProcess
from holdfast.process.process_events import Exited, Interrupt
from holdfast.process.terminal import Terminal


class Stub:
    def __init__(self, folder, tell, orders, command):
        self.folder, self.tell_fd, self.orders_fd, self.command = Path(folder), int(tell), int(orders), command
        self.passive = False

    def tell(self, what, **facts):
        os.write(self.tell_fd, json.dumps({"what": what, **facts}).encode() + b"\n")

    def run(self):
        with Terminal() as terminal:
            self.terminal = terminal
            while True:
                self.again = False
                self.live()
                if not self.again:
                    break
        self.tell("over")

    def live(self):
        self.child = ChildProcess.start(
            self.command,
            cwd=Path.cwd(),
            env=os.environ,
            stdout_log=self.folder / "stdout.log",
            stderr_log=self.folder / "stderr.log",
            terminal=self.terminal,
        )
        self.tell("started", pid=self.child.pid, own_pid=os.getpid())
        notice = None
        while not isinstance(notice, Exited):
            notice = self.child.wait(0.05)
            if notice is not None:
                self.tell(type(notice).__name__, **dataclasses.asdict(notice))
            if isinstance(notice, Interrupt) and not notice.delivered and not self.passive:
                self.child.ask_to_stop()
            self.obey()
        began = time.monotonic()
        self.child.close()
        words = self.child.last_lines(20)
        self.tell(
            "closed",
            seconds=time.monotonic() - began,
            threads=threading.active_count(),
            stderr=words.stderr,
            stdout=words.stdout,
        )

    def obey(self):
        while select.select([self.orders_fd], [], [], 0)[0]:
            line = b""
            while not line.endswith(b"\n"):
                byte = os.read(self.orders_fd, 1)
                if not byte:
                    return
                line += byte
            name, *arguments = line.decode().split()
            self.tell("done", order=name, answer=getattr(self, "do_" + name)(*arguments))

    def do_end(self, grace):
        return self.child.terminate(float(grace))

    def do_suspend(self):
        self.child.suspend()

    def do_resume(self):
        self.child.resume()

    def do_passive(self):
        self.passive = True

    def do_again(self):
        self.again = True

    def do_descendants(self):
        return self.child.descendants()

    def do_quiet(self):
        return self.child.quiet_for()

    def do_blocked(self):
        return self.child.blocked_on_terminal()

    def do_other_child(self):
        """Another subprocess of the supervisor ends while the child lives: its status must stay its own."""
        other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
        deadline = time.monotonic() + 20
        while not os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) and time.monotonic() < deadline:
            self.child.wait(0.01)
        return other.wait()

    def do_idle(self):
        """Processor time that a second of waiting takes, in milliseconds."""
        began = time.process_time()
        assert self.child.wait(1.0) is None
        return (time.process_time() - began) * 1000

    def do_raise(self):
        raise RuntimeError("a bug of the supervisor")


if __name__ == "__main__":
    Stub(*sys.argv[1:4], sys.argv[4:]).run()
