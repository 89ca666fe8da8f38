"""The operator check: does the device compute what the CPU computes, in the user's own first steps?

The seam. The bootstrap calls `from_environment` (by way of `dry_run`, which has a JSON of its own and drives a `Session` itself)
where `HOLDFAST_CHECK` is set, a JSON of one of:

    {"op_check": {"steps": 3, "seconds": 40}}     every operator on a device is run once more on the CPU and compared
    {"record": {"steps": 3, "name": "device-1", "jitter": 0.0}}     nothing is compared; each step's figures are written

Either ends the process after that many steps with status 0, whatever the training would catch. A training that ends sooner
says so. In the attempt's folder:

    op_check.jsonl        {"event": "op-check-began"}, an "op-check-operator" for each operator that is wrong (`Finding`), and
                        "op-check-ended": steps, calls, compared, signatures, signatures_compared, skipped, notes, seconds, says
    steps-<name>.jsonl  a "step-record" for each step: loss, gradients, weights (`recording.py`)

`op-check-ended` is missing where the process was killed. `recording` is for races, which comparing each operator hides, since
it waits for each: the same steps twice on the device and a few times on the CPU, set side by side by the supervisor
(`diagnosis/device_parity.py`). Canaries (`canaries.py`) are tiny programs for bugs that are publicly known.

The operator check changes no number of the training, but it is slow, and it has torch.compile's programs run eagerly: it says so.
"""

import importlib
import json
import os
import sys
import threading
import time

from .. import protocol
from ..event_writer import encode_event
from .dispatch_mode import OpChecker, dispatch_mode

FILE = "op_check.jsonl"
NOTHING = "nothing to compare: everything ran on the CPU"
NO_STEP = "no step was made: %s"
ENDED_SOONER = "the training ended after {steps} of {asked} steps: {compared} of {calls} calls were compared"

_installed = []  # type: ignore[var-annotated]


def from_environment(torch, probe_like):
    """What `HOLDFAST_CHECK` asks for. A wrong JSON is said on stderr, and the training runs as it would."""
    try:
        asked = json.loads(os.environ.get(protocol.CHECK) or "{}")
        if asked.get("op_check") is not None:
            install(torch, probe_like, **asked["op_check"])
        elif asked.get("record") is not None:
            from . import step_recorder

            step_recorder.install(torch, probe_like, **asked["record"])
    except Exception as error:
        sys.stderr.write("holdfast: %s cannot be followed: %s\n" % (protocol.CHECK, error))


def install(torch, probe_like, steps=3, seconds=40.0):
    """Starts comparing in this thread, from now on; the process ends after `steps` optimizer steps.

    `probe_like` has an `attempt_dir`, and may have `inspectors`, which are taken away (their operators would be compared too),
    and `end(reason)`.
    """
    session = Session(torch, probe_like, steps, seconds)
    _installed.append(session)
    session.start()
    return session


class Steps(object):
    """Counts the steps of the first optimizer that steps. `before(optimizer)` is called as any step begins, and
    `after(optimizer, counts)` when it has ended.
    """

    def __init__(self, torch, before, after):
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self.count = 0
        self._clock = None
        self._running = []
        """Which optimizers step right now, outermost first. One that begins again had raised."""
        self._before, self._after = before, after
        self._hooks = [register_optimizer_step_pre_hook(self._begins), register_optimizer_step_post_hook(self._ended)]

    @property
    def depth(self):
        """How many steps are under way, one inside the other."""
        return len(self._running)

    def _begins(self, optimizer, args, kwargs):
        self._forget(optimizer)
        self._running.append(id(optimizer))
        self._before(optimizer)

    def _ended(self, optimizer, args, kwargs):
        self._forget(optimizer)
        outermost = not self._running
        if self._clock is None and outermost:
            self._clock = optimizer
        counts = optimizer is self._clock and outermost
        self.count += counts
        self._after(optimizer, counts)

    def _forget(self, optimizer):
        if id(optimizer) in self._running:
            del self._running[self._running.index(id(optimizer)) :]

    def remove(self):
        for hook in self._hooks:
            hook.remove()


class Session(object):
    """The operator check in one process."""

    def __init__(self, torch, probe_like, steps, seconds, then=None):
        """`then` is called with the probe after the last step, in place of the process's end."""
        self._then = then
        self._torch = torch
        self._probe = probe_like
        self._steps = steps
        self._path = os.path.join(probe_like.attempt_dir, FILE)
        self._descriptor = -1
        self._began = time.monotonic()
        self._notes = []
        self._modes = {}
        self.ended = False
        self.checker = OpChecker(torch, self._tell, seconds, steps)

    def start(self):
        import atexit

        if getattr(self._probe, "inspectors", None):
            self._probe.inspectors = []
        self.counter = Steps(self._torch, self._step_begins, self._step_ended)
        self._enter()
        self._eagerly()
        atexit.register(self.close, ENDED_SOONER)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def stop(self):
        """Takes the mode and the hooks away: for tests, which go on in the same process."""
        self.checker.off = True
        self.counter.remove()
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            mode.__exit__(None, None, None)

    # --- following the training ----------------------------------------------------------------------------------

    def _enter(self):
        mode = dispatch_mode(self._torch, self.checker)
        mode.__enter__()
        self._modes[threading.get_ident()] = mode

    def _step_begins(self, optimizer):
        self.checker.optimizing = True
        if threading.get_ident() not in self._modes and self.checker.phase() != "backward":
            self._note("this training steps in another thread: what came before its first step there was not compared")
            self._enter()

    def _step_ended(self, optimizer, counts):
        self.checker.optimizing = False
        if not counts:
            return
        self.checker.step = self.counter.count + 1
        if self.counter.count >= self._steps:
            self.close("{compared} of {calls} calls in {steps} steps were compared")
            (self._then or leave)(self._probe)

    def _eagerly(self):
        """Programs of torch.compile run as they are written: a compiled one is one operator, with nothing to compare it with."""
        torch = self._torch
        original = getattr(torch, "compile", None)
        if original is None:
            return

        def compile(*args, **kwargs):  # noqa: A001 - it takes that name's place
            self._note("torch.compile: the program was checked as it is written, not compiled")
            try:
                torch.compiler.set_stance("force_eager")
            except Exception:  # a torch that has no stances
                importlib.import_module("torch._dynamo").config.disable = True
            return original(*args, **kwargs)

        torch.compile = compile

    def _forked(self):
        self.checker.off = True
        self.ended = True

    # --- writing -------------------------------------------------------------------------------------------------

    def _note(self, text):
        if text not in self._notes:
            self._notes.append(text)

    def _tell(self, finding):
        self._write("op-check-operator", finding.as_dict())

    def _write(self, event, fields):
        if self._descriptor < 0:
            self._descriptor = _opened(self._path)
            os.write(
                self._descriptor,
                encode_event("op-check-began", {"pid": os.getpid(), "torch": str(self._torch.__version__)}),
            )
        os.write(self._descriptor, encode_event(event, fields))

    def summary(self, message=""):
        checker = self.checker
        return {
            "message": message,
            "steps": self.counter.count,
            "calls": checker.calls,
            "compared": checker.compared,
            "signatures": len(checker.signatures),
            "signatures_compared": sum(1 for times in checker.signatures.values() if times),
            "skipped": dict(checker.skipped),
            "not_run_on_cpu": dict(checker.failures),
            "suspicious": {"%s %s" % key[:2]: times for key, (_, times) in checker.findings.items()},
            "devices": {str(device): precision.as_dict() for device, precision in checker.devices.items()},
            "notes": list(self._notes),
            "seconds": round(checker.spent, 3),
            "wall_seconds": round(time.monotonic() - self._began, 3),
        }

    def close(self, message):
        """Writes the last line, once, and compares no more. A process that did nothing worth a line writes none."""
        if self.ended:
            return
        self.ended = True
        self.checker.off = True
        if not self.counter.count and not self.checker.calls:
            return
        checker = self.checker
        text = message.format(
            steps=self.counter.count, asked=self._steps, compared=checker.compared, calls=checker.calls
        )
        if not self.checker.calls:
            text = NOTHING
        elif not self.counter.count:
            text = NO_STEP % text
        try:
            self._write("op-check-ended", self.summary(text))
        except OSError:
            pass


def _opened(path):
    """A file of this process's own: a second process of the same training gets another name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        stem, dot, ending = path.rpartition(".")
        return os.open("%s-%d%s%s" % (stem, os.getpid(), dot, ending), flags, 0o600)


def leave(probe_like):
    """Ends the process here. Raising would not do: a training may catch whatever comes."""
    try:
        end = getattr(probe_like, "end", None)
        if end is not None:
            end("checked")
        processes = sys.modules.get("multiprocessing")
        for child in processes.active_children() if processes is not None else ():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)
