"""A supervisor without processes: a scripted child, a clock that moves when somebody waits, and a machine with fixed facts.

    run = FakeRun(tmp_path)
    verdict = run.supervise([trains(), losses(...), Exited(1)], [trains(), losses(...), Exited(0)])

Each list is the script of one attempt. Its parts, one a tick:
    a list of events    the probe writes them
    a ProcessEvent      `wait` returns it
    a number            seconds pass without anything
    a function          called with the child, to change something outside of it
A child whose script is over waits until somebody terminates it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from holdfast.machine import KillCounters, Power, SystemMemory
from holdfast.machine.base import AwakeResult
from holdfast.probe.holdfast_probe import protocol
from holdfast.process.child_process import LastOutput
from holdfast.process.process_events import Exited
from holdfast.schema import events
from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.plan import Plan
from holdfast.storage.folder import create
from holdfast.storage.journal import replay
from holdfast.storage.plan_copy import write_plan
from holdfast.supervisor import supervisor
from holdfast.supervisor.supervisor import Deps

GIB = 1 << 30


class FakeClock:
    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


class FakeMachine:
    """Plenty of memory, and no kill on record unless `evidence` says so."""

    def __init__(self):
        self.available = 12 * GIB
        self.evidence = []

    def memory(self):
        return SystemMemory(
            total=16 * GIB, available=self.available, swap_used=0, swap_in=0, limit=16 * GIB, limited_by="test"
        )

    def pids(self):
        return []

    def process(self, pid):
        return None

    def seconds_asleep(self):
        return None

    def kill_counters(self):
        return KillCounters({}, 0.0)

    def kill_evidence(self, before, pids, since):
        return self.evidence

    def keep_awake(self):
        return contextlib.nullcontext(AwakeResult(kept=True, message="a test"))

    def power(self):
        return Power()


class FakeTerminal:
    """Nobody is there. `requests` are returned by `wait`, between two attempts."""

    def __init__(self, clock, requests=()):
        self._clock = clock
        self.requests = list(requests)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def wait(self, timeout):
        if self.requests:
            return self.requests.pop(0)
        self._clock.advance(timeout)
        return None


class FakeChild:
    pid = 2**22 + 1
    """Larger than any real pid."""

    def __init__(self, script, clock, argv, env):
        self.argv, self.env = argv, env
        self.folder = Path(env[protocol.ATTEMPT_DIR])
        self.exited = None
        self.asked = []
        """What the supervisor asked of it, in order."""
        self.stderr = []
        self.ignores_interrupts = False
        self._script = list(script)
        self._clock = clock
        self._output_at = clock()

    def wait(self, timeout):
        self._clock.advance(timeout)
        if self.exited is not None:
            return self.exited
        if not self._script:
            return None
        part = self._script.pop(0)
        if isinstance(part, list):
            self.write(part)
            self._output_at = self._clock()
        elif isinstance(part, (int, float)):
            self._clock.advance(part)
        elif isinstance(part, Exited):
            self.exited = part
            return part
        elif callable(part):
            part(self)
        else:
            return part
        return None

    def write(self, probe_events):
        """Append events as the probe of rank 0 does, at the present time."""
        with (self.folder / "rank-0.jsonl").open("ab") as file:
            for event in probe_events:
                file.write(events.encode(event) + b"\n")

    def ask_to_stop(self):
        self.asked.append("interrupt")
        if not self.ignores_interrupts:
            self.exited = Exited(None, "SIGINT")

    def terminate(self, grace):
        self.asked.append("terminate")
        self.exited = self.exited or Exited(None, "SIGTERM")
        return []

    def quiet_for(self):
        return self._clock() - self._output_at

    def last_lines(self, lines):
        return LastOutput(self.stderr[-lines:], [])

    def wake(self):
        return False

    def at_prompt(self):
        return False

    def blocked_on_terminal(self):
        return False

    def watch(self, matcher):
        pass

    def list_alive(self):
        return []

    def close(self):
        pass


class FakeRun:
    """A run folder, and a supervisor whose children follow scripts."""

    def __init__(self, folder, command=("python", "train.py"), **plan):
        self.clock = FakeClock()
        self.machine = FakeMachine()
        self.plan = Plan(cwd=str(folder), command=list(command), backoff_s=plan.pop("backoff_s", 0.0), **plan)
        self.folder = create(command, root=folder, name="run", folder=None)
        write_plan(self.folder, self.plan)
        self.terminal = FakeTerminal(self.clock)
        self.children = []
        self.heard = []
        """The events that a listener got."""

    def supervise(self, *scripts):
        """Start the run with one script per attempt; return its verdict."""
        return supervisor.start(self.folder, self.plan, [self._listen], self._deps(scripts))

    def take_over(self, *scripts):
        """Resume the run as a new supervisor."""
        return supervisor.take_over(self.folder, self.plan, [self._listen], self._deps(scripts))

    def _listen(self, event, state):
        self.heard.append(event)

    def _deps(self, scripts):
        left = list(scripts)

        def start(argv, *, env, **_):
            if not left:
                raise AssertionError(f"an attempt that no script describes: {argv}")
            script = left.pop(0)
            if isinstance(script, OSError):
                raise CommandNotRunnable("It could not be started.") from script
            self.children.append(FakeChild(script, self.clock, argv, env))
            return self.children[-1]

        return Deps(
            machine=self.machine,
            clock=self.clock,
            monotonic=self.clock,
            open_terminal=lambda: self.terminal,
            start_child=start,
        )

    def events(self, kind):
        return [entry.event for entry in replay(self.folder) if isinstance(entry.event, kind)]

    @property
    def decisions(self):
        return [event.decision for event in self.events(events.DecisionMade)]

    @property
    def ends(self):
        return self.events(events.AttemptEnded)

    @property
    def notes(self):
        return [event.what for event in self.events(events.SupervisorNote)]


def no_memory_to_fork():
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
