"""The probe: one a process, asleep until the process trains.

It owns what the parts share: the file of events, the heartbeat, the budget, the looks. Each part (steps, losses, loaders,
...) is a file of its own and reaches the others through the probe.
"""

import os
import sys
import threading
import time

from . import heartbeat, protocol, stack_dumps
from .budget import Budget
from .deferred_scalars import DeferredScalars
from .event_writer import EventWriter
from .fast_path import FastPath
from .gc_pause import GcPause
from .heartbeat import FRESH_SECONDS, IN_EVERY_STEP
from .loaders import Loaders
from .losses import Losses
from .lr_schedulers import LrSchedulers
from .memory import Memory
from .scaler import Scaler
from .steps import Steps
from .supervisor_watch import SupervisorWatch

MAX_NOTES = 50
MAX_FAILURES = 20
"""A probe that keeps failing stops trying."""
OBSERVED_SECONDS = 1.0
FETCH_SECONDS = 1.0
FETCH_SECONDS_AT_FIRST = 0.2
"""How long values may wait on a device; shorter while every step gets a line of its own."""
FETCHED_AT_ONCE = 16
"""In so many first steps they do not wait at all: what is wrong from the start is known at once."""
DUE_SECONDS = 0.25

UNOBSERVED_AT_FIRST = {
    "steps": "not seen: no optimizer has stepped",
    "losses": "not seen: no backward has run",
    "gradient norms": "not seen: clip_grad_norm_ has not been called",
    "learning rates": "not seen: no optimizer has stepped",
    "batches": "not seen: no DataLoader has been read",
    "epochs": "not seen: no DataLoader has been read to its end",
    "evaluations": "not seen: no DataLoader has been read without gradients",
    "schedules": "not seen: no learning-rate scheduler has been made",
    "memory": "not seen: it has not been sampled so far (every two seconds, between steps)",
    "snapshots": "not seen: holdfast.guard is not used",
    "torch.func": "not seen: gradients taken by torch.func never pass through autograd's backward",
}

_probe = None
_parked = []  # type: ignore[var-annotated]
"""What a fork inherited and must never free: it may lie on a device that the forked process cannot reach."""


def install(torch, attempt_dir, start=None):
    """Hooks torch, once a process. The probe stays asleep until something trains; that is when `start` has ended."""
    global _probe
    if _probe is not None:
        return
    _probe = Probe(torch, attempt_dir, start or GcPause())
    from . import torch_patches

    torch_patches.install(_probe)
    _probe.load_extensions()
    os.register_at_fork(after_in_child=_probe.forked)


def current():
    """The probe of this process, once it is installed."""
    return _probe


class Probe(object):
    def __init__(self, torch, attempt_dir, start):
        self.torch = torch
        self._start = start
        self.attempt_dir = attempt_dir
        self.inspectors = []
        self._inspector_calls = {}
        self._forked = False
        self._cuda = _cuda_that_captures(torch)
        self._begin()

    def _begin(self):
        self.awake = False
        """Whether this process records. Hooks look at it first."""
        self.silent = False
        """Set for good in a process that must not record: a loader's worker, or a probe that failed too often."""
        self.ended = False
        self.rank, self.world_size, self.primary = 0, 1, True
        self.first_step = _as_int(os.environ.get(protocol.FIRST_STEP), 0)
        self.step = self.first_step
        """The last finished step of the clock."""
        self.heart = None
        self.writer = None
        self.pause_seconds = 0.0
        """Time since the last step that was not training."""
        self.stack_signal = None
        self._notes = set()
        self._early_notes = []
        """Those from before this process records."""
        self._failures = 0
        self._kinds = dict(UNOBSERVED_AT_FIRST)
        self._observed_dirty = True
        self._observed_at = 0.0
        self._fetched_at = 0.0
        self.due_at = 0.0
        self.phase_now = "starting"
        self.last_loss = float("nan")
        self.told_models = []
        """Weak references to models that an adapter knows to be trained: they need not be searched for."""
        self.watching = True
        """Whether looks want to see the step at hand. Where they do not, hooks spare themselves the way to them."""
        self._claim_lock = threading.Lock()
        self.budget = Budget(self.note)
        self.scalars = DeferredScalars(self.torch, self.note)
        self.steps = Steps(self)
        self.losses = Losses(self)
        self.scaler = Scaler(self)
        self.loaders = Loaders(self)
        self.schedules = LrSchedulers(self)
        self.memory = Memory(self)
        self.orphan = SupervisorWatch(self)
        self.quick = FastPath(self)

    # --- what looks and adapters use -----------------------------------------------------------------------------

    @property
    def optimizers(self):
        """Every live optimizer that has stepped, in the order of their first steps."""
        return self.steps.optimizers()

    @property
    def clock(self):
        """The optimizer whose steps are the run's steps; None before the first step and when it is gone."""
        return self.steps.clock()

    def emit(self, event, **fields):
        """Writes one event, if this process records. Never raises."""
        if self.writer is None:
            return
        try:
            if event != "step":
                if self.quick.on and self.scalars.on_training_thread():
                    self.quick.settle()
                self.steps.recorder.write_held()
            self.writer.write(event, fields, self.step)
        except Exception as error:
            self.failed("writing %s" % event, error)

    def emit_all(self, event, several):
        """The same for several of one kind, each a dictionary of fields."""
        if self.writer is None:
            return
        try:
            self.writer.write_all(event, several)
        except Exception as error:
            self.failed("writing %s" % event, error)

    def see(self, kind, text="seen"):
        """A kind of evidence is seen, or is not and why ("not seen: ...")."""
        if self._kinds.get(kind) != text:
            self._kinds[kind] = text
            self._observed_dirty = True

    def note(self, what, detail=""):
        """Something that a reader of the run should know about the probe itself; the same text is written once."""
        if (what, detail) in self._notes or len(self._notes) >= MAX_NOTES:
            return
        self._notes.add((what, detail))
        if self.writer is None:
            self._early_notes.append((what, detail))
        self.emit("probe-note", what=what, detail=detail)

    def paused(self, seconds):
        """This much of the time since the last step was not training (saving, evaluating): the step leaves it out. And so does an
        evaluation that it falls into: every second is told once.
        """
        self.pause_seconds += seconds
        if self.loaders.evaluating:
            self.loaders.interrupted += seconds

    def phase(self, name):
        """What the process is doing, for the heartbeat: one of `heartbeat.PHASES`. Returns the phase before."""
        before = self.phase_now
        if name != before:
            self.phase_now = name
            if self.heart is not None and not (name in IN_EVERY_STEP and before in IN_EVERY_STEP):
                self.heart.phase(name)
        return before

    def pulse(self, now):
        """A sign of life for the heartbeat, where it has none for longer than a step takes. `now` is monotonic."""
        heart = self.heart
        if heart is not None and now - heart.written_at >= max(FRESH_SECONDS, self.budget.step_seconds):
            heart.beat((now, self.last_loss, self.losses.total, self.loaders.fetches), self.phase_now)

    def parts(self, values):
        """Loss components of the backward at hand, name -> float or tensor of one element: they go into the next step."""
        self.losses.parts(values)

    def epoch_ended(self, epoch, seconds, batches, source, planned=None):
        """An adapter knows epochs: from now on, exhausted loaders do not count as such."""
        self.loaders.epochs_known_by = source
        self.loaders.epoch_ended(epoch, seconds, batches, source, planned)

    def failed(self, where, error):
        """Something of ours raised. The training never hears of it; the run's record does."""
        try:
            self._failures += 1
            self.note("the probe failed in %s" % where, "%s: %s" % (type(error).__name__, str(error)[:300]))
            if self._failures >= MAX_FAILURES and not self.silent:
                self.note("the probe failed too often and is off")
                self.silent, self.awake = True, False
                self.quick.on = False
        except Exception:
            pass

    # --- looks ---------------------------------------------------------------------------------------------------

    def load_extensions(self):
        """Looks and adapters: each may be missing, none may stop the training."""
        try:
            from .inspectors import all_inspectors

            self.inspectors = list(all_inspectors(self))
        except Exception as error:
            self.failed("inspectors", error)
        try:
            from . import adapters
        except ImportError:
            return
        try:
            adapters.install(self)
        except Exception as error:
            self.failed("adapters", error)

    def inspect(self, moment, *args):
        """Every look at one moment: "backward_begins", "step_begins", "step_ended" or "ends".

        Not while a CUDA graph is captured: what looks read would become part of the graph, or break it.
        """
        cuda = self._cuda
        if cuda is not None and cuda._initialized and cuda.is_current_stream_capturing():
            return
        calls = self._inspector_calls.get(moment)
        if calls is None:
            calls = self._inspector_calls[moment] = self._calls_at(moment)
        if not calls:
            return
        began = self.budget.inspection_begins()
        for inspector, call in calls:
            try:
                call(*args)
            except Exception as error:
                self._switch_off(inspector, error)
        self.budget.inspection_ended(began)

    def _calls_at(self, moment):
        """Looks that do something at this moment; most do nothing at most moments."""
        from .inspectors import Inspector

        calls = [(inspector, getattr(inspector, moment, None)) for inspector in self.inspectors]
        idle = getattr(Inspector, moment)
        return [
            (inspector, call)
            for inspector, call in calls
            if call is not None and getattr(call, "__func__", call) is not idle
        ]

    def _switch_off(self, inspector, error):
        self._inspector_calls = {}
        if inspector in self.inspectors:
            self.inspectors.remove(inspector)
        self.failed("the look %r, which is off from here on" % inspector.name, error)

    # --- life ----------------------------------------------------------------------------------------------------

    def claim(self, by):
        """Takes this process's place among the ranks, at the first sign that it trains. True when it records.

        A forked process has to show more than a loader fetch: forked loader workers fetch too.
        """
        if self.silent or self.ended or (self._forked and by == "fetch"):
            return False
        with self._claim_lock:
            if self.awake:
                return True
            if self.silent:
                return False
            try:
                if self._is_worker():
                    self.silent = True
                    return False
                self._claim()
            except Exception:
                self.silent = True
                return False
            self.awake = True
            return True

    def _is_worker(self):
        data = sys.modules.get("torch.utils.data")
        return data is not None and data.get_worker_info() is not None

    def _claim(self):
        import atexit

        self._start.ended()
        pid = os.getpid()
        self.rank, self.world_size = self._rank_and_world()
        self.writer = EventWriter(self.attempt_dir, self.rank, pid)
        self.primary = self.writer.primary
        os.environ.pop(protocol.FIRST_STEP, None)  # not for what this process starts
        if not self.primary:
            self.first_step = self.step = 0
        self._open_heart(pid)
        self.orphan.watch(os.environ.get(protocol.LOCK))
        self.stack_signal, stack_file = stack_dumps.register(self.attempt_dir, pid)
        self.emit(
            "probe-attached",
            schema=protocol.SCHEMA,
            pid=pid,
            rank=self.rank,
            world_size=self.world_size,
            primary=self.primary,
            python="%d.%d.%d" % sys.version_info[:3],
            executable=sys.executable or "",
            torch=str(self.torch.__version__),
            platform="%s %s %s" % (sys.platform, os.uname().release, os.uname().machine),
            threads=self.torch.get_num_threads(),
            stack_signal=self.stack_signal,
            stack_file=stack_file,
            first_step=self.first_step,
        )
        for what, detail in self._early_notes:
            self.emit("probe-note", what=what, detail=detail)
        self.steps.claimed()
        self._fetched_at = time.monotonic()
        self._emit_observed()
        atexit.register(self.end)
        util = sys.modules.get("multiprocessing.util")
        if self._forked and util is not None:
            # A forked multiprocessing.Process leaves through os._exit and runs these, not atexit's.
            util.Finalize(None, self.end, exitpriority=0)

    def _open_heart(self, pid):
        path = os.environ.get(protocol.HEARTBEAT)
        if not path:
            return
        try:
            slot = self.rank if self.primary and self.rank < heartbeat.SLOTS else None
            self.heart = heartbeat.Heart(path, slot, pid, self.first_step, self.world_size)
        except (OSError, ValueError) as error:
            self.note("this process has no heartbeat", str(error))

    def goes_on_from(self, step):
        """The training has the state that it had at this step, whatever it was to go on from."""
        os.environ.pop(protocol.FIRST_STEP, None)
        if self.awake and self.step != self.first_step:
            self.note("steps are numbered on from step %d although it goes on from step %d" % (self.step, step))
            return
        self.first_step = self.step = step

    def starts_over(self):
        """The training does not go on from the step that it was to go on from."""
        os.environ.pop(protocol.FIRST_STEP, None)
        if not self.first_step:
            return
        if self.awake:
            self.note("steps are numbered on from step %d although the training starts over" % self.first_step)
            return
        self.first_step = self.step = 0

    def _rank_and_world(self):
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                return distributed.get_rank(), distributed.get_world_size()
        except Exception as error:
            self.note("the process group does not say its rank", str(error)[:200])
        return _as_int(os.environ.get("RANK"), 0), _as_int(os.environ.get("WORLD_SIZE"), 1)

    def forked(self):
        """In the child of a fork: everything that was opened belongs to the parent."""
        try:
            self._start.ended()
            if self.writer is not None:
                self.writer.forget()
            if self.heart is not None:
                self.heart.close()
            self.orphan.forget()
            stack_dumps.unregister(self.stack_signal)
            _parked.append(
                (self.scalars, self.steps, self.scaler, [inspector.forked() for inspector in self.inspectors])
            )
            silent = self.silent
            self._forked = True
            self._begin()
            self.silent = silent
        except Exception:
            self.silent = True

    def periodic(self, now):
        """After a step of the clock, once `due_at` is reached: what is done now and then. `now` is monotonic."""
        early = self.step - self.first_step < FETCHED_AT_ONCE
        if not early:
            self.due_at = now + (FETCH_SECONDS_AT_FIRST if self.steps.recorder.writes_each else DUE_SECONDS)
        if self._observed_dirty and now - self._observed_at >= OBSERVED_SECONDS:
            self._observed_at = now
            self._emit_observed()
        queue = self.steps.recorder
        if self.scalars.count or len(queue):
            wait = FETCH_SECONDS_AT_FIRST if queue.writes_each else FETCH_SECONDS
            if early or now - self._fetched_at >= wait:
                self._fetched_at = now
                self._fetch_scalars(now)
        if now >= self.memory.next_at:
            self.memory.sample(now)

    def _fetch_scalars(self, now):
        with self.budget.spending("fetch scalars"):
            if self.scalars.fetch():
                self.steps.recorder.give_up_waiting(now)

    def _emit_observed(self):
        self._observed_dirty = False
        self.emit("coverage", kinds=self._kinds, step_source=self.steps.source, optimizers=self.steps.names()[:32])

    def end(self, reason="exit"):
        """The process is about to end in an orderly way. Runs once."""
        if self.ended or not self.awake:
            return
        self.ended = True
        self.awake = False
        for part in (self._end_values, self.loaders.end, self._end_looks, self.schedules.end, self._emit_observed):
            try:
                part()
            except Exception as error:
                self.failed("ending", error)
        self.phase_now = "ended"
        if self.heart is not None:
            self.heart.beat((time.monotonic(), self.last_loss, self.losses.total, self.loaders.fetches), "ended")
        self.emit("process-exiting", step=self.step, reason=reason)

    def _end_values(self):
        if self.quick.is_ahead():
            self.quick.leave()
        self.scalars.fetch()
        self.steps.end()

    def _end_looks(self):
        self.inspect("ends")


def _cuda_that_captures(torch):
    """torch.cuda, where this torch can say whether a graph is being captured."""
    cuda = getattr(torch, "cuda", None)
    return cuda if hasattr(cuda, "is_current_stream_capturing") and hasattr(cuda, "_initialized") else None


def _as_int(text, default):
    try:
        return int(text)
    except (TypeError, ValueError):
        return default
