"""The operator check: does the device compute the same results as the CPU in the first steps of the user's training?

The bootstrap calls `from_environment` if `HOLDFAST_CHECK` is set. The call goes through `dry_run`, which accepts its own
JSON and drives a `Session` itself. `HOLDFAST_CHECK` is one of:

    {"op_check": {"steps": 3, "seconds": 40}}     run every device operator again on the CPU and compare the results
    {"record": {"steps": 3, "name": "device-1", "jitter": 0.0}}     compare nothing; write the figures of each step

Both exit the process with status 0 after that many steps, regardless of what the training catches. If the training ends
earlier, the record states it. Files in the attempt's folder:

    op_check.jsonl        {"event": "op-check-began"}, an "op-check-operator" for each wrong operator (`Finding`), and
                        "op-check-ended": steps, calls, compared, signatures, signatures_compared, skipped, notes, seconds, message
    steps-<name>.jsonl  a "step-record" for each step: loss, gradients, weights (`step_recorder.py`)

`op-check-ended` is missing if the process was killed. `step_recorder` finds races, which comparing each operator hides
because it waits for each result: it runs the same steps twice on the device and a few times on the CPU, and the supervisor
compares the runs (`diagnosis/device_parity.py`). Canaries (`canaries.py`) are tiny programs for publicly known bugs.

The operator check does not change any number of the training. It is slow, and it runs torch.compile programs eagerly, which
a note reports.
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
NOTHING_TO_COMPARE = "nothing to compare: everything ran on the CPU"
NO_STEP = "no step was made: %s"
ENDED_EARLY = "the training ended after {steps} of {requested} steps: {compared} of {calls} calls were compared"

_installed = []  # type: ignore[var-annotated]


def from_environment(torch, probe_like):
    """Install what `HOLDFAST_CHECK` requests. If the JSON is invalid, report it on stderr and let the training run."""
    try:
        config = json.loads(os.environ.get(protocol.CHECK) or "{}")
        if config.get("op_check") is not None:
            install(torch, probe_like, **config["op_check"])
        elif config.get("record") is not None:
            from . import step_recorder

            step_recorder.install(torch, probe_like, **config["record"])
    except Exception as error:
        sys.stderr.write("holdfast: the value of %s is invalid: %s\n" % (protocol.CHECK, error))


def install(torch, probe_like, steps=3, seconds=40.0):
    """Start comparing in this thread. The process exits after `steps` optimizer steps.

    `probe_like` has an `attempt_dir`. It may have `end(reason)`, and `inspectors`, which are removed because their operators
    would be compared too.
    """
    session = Session(torch, probe_like, steps, seconds)
    _installed.append(session)
    session.start()
    return session


class Steps(object):
    """Counts the steps of the first optimizer that steps. `before(optimizer)` is called before every step, and
    `after(optimizer, counts)` after it.
    """

    def __init__(self, torch, before, after):
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self.count = 0
        self._primary = None
        self._running = []
        """The ids of the optimizers that are stepping, outermost first. If one begins again, its last step raised."""
        self._before, self._after = before, after
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    @property
    def depth(self):
        """The number of nested steps in progress."""
        return len(self._running)

    def _before_step(self, optimizer, args, kwargs):
        self._remove_running(optimizer)
        self._running.append(id(optimizer))
        self._before(optimizer)

    def _after_step(self, optimizer, args, kwargs):
        self._remove_running(optimizer)
        outermost = not self._running
        if self._primary is None and outermost:
            self._primary = optimizer
        counts = optimizer is self._primary and outermost
        self.count += counts
        self._after(optimizer, counts)

    def _remove_running(self, optimizer):
        if id(optimizer) in self._running:
            del self._running[self._running.index(id(optimizer)) :]

    def remove(self):
        for hook in self._hooks:
            hook.remove()


class Session(object):
    """The operator check in one process."""

    def __init__(self, torch, probe_like, steps, seconds, on_finish=None):
        """`on_finish` is called with the probe after the last step, instead of exiting the process."""
        self._on_finish = on_finish
        self._torch = torch
        self._probe = probe_like
        self._steps = steps
        self._path = os.path.join(probe_like.attempt_dir, FILE)
        self._descriptor = -1
        self._began = time.monotonic()
        self._notes = []
        self._modes = {}
        self.ended = False
        self.checker = OpChecker(torch, self._report, seconds, steps)

    def start(self):
        import atexit

        if getattr(self._probe, "inspectors", None):
            self._probe.inspectors = []
        self.counter = Steps(self._torch, self._step_begins, self._step_ended)
        self._enter()
        self._force_eager()
        atexit.register(self.close, ENDED_EARLY)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def stop(self):
        """Remove the mode and the hooks. For tests, which continue in the same process."""
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
            self._note("this training steps in another thread: operators before the first step there were not compared")
            self._enter()

    def _step_ended(self, optimizer, counts):
        self.checker.optimizing = False
        if not counts:
            return
        self.checker.step = self.counter.count + 1
        if self.counter.count >= self._steps:
            self.close("{compared} of {calls} calls in {steps} steps were compared")
            (self._on_finish or exit_process)(self._probe)

    def _force_eager(self):
        """Run torch.compile programs eagerly: a compiled program is a single operator with no CPU counterpart."""
        torch = self._torch
        original = getattr(torch, "compile", None)
        if original is None:
            return

        def compile(*args, **kwargs):  # noqa: A001 - it replaces torch.compile
            self._note("torch.compile: the program was checked in eager mode, not compiled")
            try:
                torch.compiler.set_stance("force_eager")
            except Exception:  # this torch has no stances
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

    def _report(self, finding):
        self._write("op-check-operator", finding.as_dict())

    def _write(self, event, fields):
        if self._descriptor < 0:
            self._descriptor = _open_file(self._path)
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
        """Stop comparing and write the last line, once. A process without steps and calls writes nothing."""
        if self.ended:
            return
        self.ended = True
        self.checker.off = True
        if not self.counter.count and not self.checker.calls:
            return
        checker = self.checker
        text = message.format(
            steps=self.counter.count, requested=self._steps, compared=checker.compared, calls=checker.calls
        )
        if not self.checker.calls:
            text = NOTHING_TO_COMPARE
        elif not self.counter.count:
            text = NO_STEP % text
        try:
            self._write("op-check-ended", self.summary(text))
        except OSError:
            pass


def _open_file(path):
    """Create this process's file. A second process of the same training gets another name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        stem, dot, suffix = path.rpartition(".")
        return os.open("%s-%d%s%s" % (stem, os.getpid(), dot, suffix), flags, 0o600)


def exit_process(probe_like):
    """Exit the process. An exception would not do: the training may catch it."""
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
