"""The probe: one per process, inactive until the process trains.

It owns what its components share: the event file, the heartbeat, the budget and the inspectors. Each component (steps,
losses, loaders, ...) has its own file and reaches the others through the probe.
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
"""After this many errors the probe turns itself off."""
COVERAGE_SECONDS = 1.0
FETCH_SECONDS = 1.0
FETCH_SECONDS_AT_FIRST = 0.2
"""How long values may wait on a device. The wait is shorter while every step gets its own line."""
FETCHED_AT_ONCE = 16
"""In this many first steps values do not wait at all, so that problems from the start are known immediately."""
DUE_SECONDS = 0.25

MISSING_AT_FIRST = {
    "steps": "no optimizer has stepped",
    "losses": "no backward has run",
    "gradient norms": "clip_grad_norm_ has not been called",
    "learning rates": "no optimizer has stepped",
    "batches": "no DataLoader has been read",
    "epochs": "no DataLoader has been read to its end",
    "evaluations": "no DataLoader has been read with gradients disabled",
    "schedules": "no learning-rate scheduler has been created",
    "memory": "it has not been sampled yet (every two seconds, between steps)",
    "snapshots": "holdfast.guard is not used",
    "torch.func": "gradients computed by torch.func do not go through autograd's backward",
}

_probe = None
_parked = []  # type: ignore[var-annotated]
"""Objects that a forked process inherited and must never free: they may be on a device that it cannot access."""


def install(torch, attempt_dir, gc_pause=None):
    """Install the hooks in torch, once per process. They do nothing until it trains; then `gc_pause` ends."""
    global _probe
    if _probe is not None:
        return
    _probe = Probe(torch, attempt_dir, gc_pause or GcPause())
    from . import torch_patches

    torch_patches.install(_probe)
    _probe.load_extensions()
    os.register_at_fork(after_in_child=_probe.forked)


def current():
    """Return the probe of this process, or None if it is not installed."""
    return _probe


class Probe(object):
    def __init__(self, torch, attempt_dir, gc_pause):
        self.torch = torch
        self._gc_pause = gc_pause
        self.attempt_dir = attempt_dir
        self.inspectors = []
        self._forked = False
        self._cuda = _find_capturing_cuda(torch)
        self._begin()

    def _begin(self):
        self.awake = False
        """Whether this process records events. Hooks check it first."""
        self.silent = False
        """Set permanently in a process that must not record: a DataLoader worker, or after too many probe errors."""
        self.ended = False
        self.rank, self.world_size, self.primary = 0, 1, True
        self.first_step = _to_int(os.environ.get(protocol.FIRST_STEP), 0)
        self.step = self.first_step
        """The last finished step of the primary optimizer."""
        self.heart = None
        self.writer = None
        self.pause_seconds = 0.0
        """Seconds since the last step that were not spent training."""
        self.stack_signal = None
        self._notes = set()
        self._early_notes = []
        """Notes from before this process started recording."""
        self._failures = 0
        self._seen, self._missing = {}, dict(MISSING_AT_FIRST)
        self._coverage_changed = True
        self._coverage_at = 0.0
        self._fetched_at = 0.0
        self.due_at = 0.0
        self.phase_now = "starting"
        self.last_loss = float("nan")
        self.registered_models = []
        """Weak references to models that a framework knows are trained, so that the probe need not search for them."""
        self.watching = True
        """Whether inspectors want to see the current step. If not, hooks do not call them."""
        self._claim_lock = threading.Lock()
        self.budget = Budget(self.note)
        self.scalars = DeferredScalars(self.torch, self.note)
        self.steps = Steps(self)
        self.losses = Losses(self)
        self.scaler = Scaler(self)
        self.loaders = Loaders(self)
        self.schedules = LrSchedulers(self)
        self.memory = Memory(self)
        self.supervisor_watch = SupervisorWatch(self)
        self.fast_path = FastPath(self)

    # --- interface for inspectors and frameworks -------------------------------------------------------------------

    @property
    def optimizers(self):
        """All live optimizers that have stepped, in the order of their first steps."""
        return self.steps.optimizers()

    @property
    def primary_optimizer(self):
        """The optimizer whose steps are the run's steps. None before the first step and after it was deleted."""
        return self.steps.primary()

    def emit(self, event, **fields):
        """Write one event, if this process records. Never raises."""
        if self.writer is None:
            return
        try:
            if event != "step":
                if self.fast_path.on and self.scalars.on_training_thread():
                    self.fast_path.settle()
                self.steps.recorder.write_pending()
            self.writer.write(event, fields, self.step)
        except Exception as error:
            self.failed("writing %s" % event, error)

    def emit_all(self, event, fields_list):
        """Write several events of one kind, each given as a dictionary of fields."""
        if self.writer is None:
            return
        try:
            self.writer.write_all(event, fields_list)
        except Exception as error:
            self.failed("writing %s" % event, error)

    def see(self, kind, remark=""):
        """Record that a kind of evidence is seen."""
        self._cover(kind, remark, self._seen, self._missing)

    def miss(self, kind, why):
        """Record why a kind of evidence is not seen."""
        self._cover(kind, why, self._missing, self._seen)

    def _cover(self, kind, text, to, other):
        if to.get(kind) != text:
            to[kind] = text
            other.pop(kind, None)
            self._coverage_changed = True

    def note(self, what, detail="", code=""):
        """Write a note about the probe itself for readers of the run. Each text is written once. Rules read only the
        `code` (see `ProbeNote` in the schema of events).
        """
        if (what, detail) in self._notes or len(self._notes) >= MAX_NOTES:
            return
        self._notes.add((what, detail))
        if self.writer is None:
            self._early_notes.append((what, detail, code))
        self.emit("probe-note", what=what, detail=detail, code=code)

    def paused(self, seconds):
        """Subtract time that was not spent training (saving, evaluating) from the current step. If it falls into an
        evaluation, subtract it there too, so that every second is reported once.
        """
        self.pause_seconds += seconds
        if self.loaders.evaluating:
            self.loaders.interrupted += seconds

    def phase(self, name):
        """Set what the process is doing, for the heartbeat: one of `heartbeat.PHASES`. Return the previous phase."""
        before = self.phase_now
        if name != before:
            self.phase_now = name
            if self.heart is not None and not (name in IN_EVERY_STEP and before in IN_EVERY_STEP):
                self.heart.phase(name)
        return before

    def pulse(self, now):
        """Write a heartbeat if the last one is older than a typical step takes. `now` is monotonic."""
        heart = self.heart
        if heart is not None and now - heart.written_at >= max(FRESH_SECONDS, self.budget.step_seconds):
            heart.beat((now, self.last_loss, self.losses.total, self.loaders.fetches), self.phase_now)

    def parts(self, values):
        """Record the next step's loss components, name -> float or one-element tensor."""
        self.losses.parts(values)

    def epoch_ended(self, epoch, seconds, batches, source, planned=None):
        """Record an epoch that a framework reports. From now on, exhausted loaders do not count as epochs."""
        self.loaders.epochs_known_by = source
        self.loaders.epoch_ended(epoch, seconds, batches, source, planned)

    def failed(self, where, error):
        """Record an error inside the probe. It never reaches the training, only the run's record."""
        try:
            self._failures += 1
            self.note("the probe failed in %s" % where, "%s: %s" % (type(error).__name__, str(error)[:300]))
            if self._failures >= MAX_FAILURES and not self.silent:
                self.note("the probe failed too often and turned itself off")
                self.silent, self.awake = True, False
                self.fast_path.on = False
        except Exception:
            pass

    # --- inspectors ----------------------------------------------------------------------------------------------

    def load_extensions(self):
        """Load inspectors and the parts for frameworks. Any of them may be missing, and none may stop the training."""
        try:
            from .inspectors import all_inspectors

            self.inspectors = list(all_inspectors(self))
        except Exception as error:
            self.failed("inspectors", error)
        try:
            from . import frameworks, torchvision_repair

            torchvision_repair.install(self)
            frameworks.call("install", self)
        except Exception as error:
            self.failed("frameworks", error)

    def inspect(self, moment, *args):
        """Call all inspectors for one event: "backward_begins", "step_begins", "step_ended" or "ends". Skip them while
        a CUDA graph is captured: their reads would become part of the graph, or break it.
        """
        cuda = self._cuda
        if cuda is not None and cuda._initialized and cuda.is_current_stream_capturing():
            return
        began = self.budget.begin_inspection()
        for inspector in tuple(self.inspectors):
            try:
                getattr(inspector, moment)(*args)
            except Exception as error:
                self.inspectors.remove(inspector)
                self.failed("the inspector %r, which is now disabled" % inspector.name, error)
        self.budget.end_inspection(began)

    # --- life cycle ----------------------------------------------------------------------------------------------

    def claim(self, by):
        """Claim a rank for this process on the first sign of training. Return True if this process records events. In a
        forked process a loader fetch is not enough, because forked loader workers fetch too.
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

        self._gc_pause.end()
        pid = os.getpid()
        self.rank, self.world_size = self._get_rank_and_world_size()
        self.writer = EventWriter(self.attempt_dir, self.rank, pid)
        self.primary = self.writer.primary
        os.environ.pop(protocol.FIRST_STEP, None)  # processes started by this one must not inherit it
        if not self.primary:
            self.first_step = self.step = 0
        self._open_heart(pid)
        self.supervisor_watch.watch(os.environ.get(protocol.LOCK))
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
        for what, detail, code in self._early_notes:
            self.emit("probe-note", what=what, detail=detail, code=code)
        self.steps.ended_at = time.monotonic()
        self._fetched_at = time.monotonic()
        self._emit_coverage()
        atexit.register(self.end)
        util = sys.modules.get("multiprocessing.util")
        if self._forked and util is not None:
            # A forked multiprocessing.Process exits through os._exit, which runs these finalizers but not atexit's.
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

    def set_resumed_step(self, step):
        """Number steps from `step`: the training has the state of that step, even if it was to resume elsewhere."""
        os.environ.pop(protocol.FIRST_STEP, None)
        if self.awake and self.step != self.first_step:
            self.note(
                "step numbers continue from step %d although the training resumes from step %d" % (self.step, step)
            )
            return
        self.first_step = self.step = step

    def set_fresh_start(self):
        """Number steps from 0: the training starts over instead of resuming."""
        os.environ.pop(protocol.FIRST_STEP, None)
        if not self.first_step:
            return
        if self.awake:
            self.note("step numbers continue from step %d although the training starts over" % self.first_step)
            return
        self.first_step = self.step = 0

    def _get_rank_and_world_size(self):
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                return distributed.get_rank(), distributed.get_world_size()
        except Exception as error:
            self.note("the rank could not be read from the process group", str(error)[:200])
        return _to_int(os.environ.get("RANK"), 0), _to_int(os.environ.get("WORLD_SIZE"), 1)

    def forked(self):
        """Reset the probe in the child of a fork: everything that was opened belongs to the parent."""
        try:
            self._gc_pause.end()
            if self.writer is not None:
                self.writer.detach()
            if self.heart is not None:
                self.heart.close()
            self.supervisor_watch.close()
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
        """Run the periodic work after a step of the primary optimizer, once `due_at` is reached. `now` is monotonic."""
        early = self.step - self.first_step < FETCHED_AT_ONCE
        if not early:
            self.due_at = now + (FETCH_SECONDS_AT_FIRST if self.steps.recorder.writes_each else DUE_SECONDS)
        if self._coverage_changed and now - self._coverage_at >= COVERAGE_SECONDS:
            self._coverage_at = now
            self._emit_coverage()
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

    def _emit_coverage(self):
        self._coverage_changed = False
        source, names = self.steps.source, self.steps.names()[:32]
        self.emit("coverage", seen=self._seen, missing=self._missing, step_source=source, optimizers=names)

    def end(self, reason="exit"):
        """Write everything that is still pending before the process exits normally. Runs once."""
        if self.ended or not self.awake:
            return
        self.ended = True
        self.awake = False
        for finish in (
            self._end_values,
            self.loaders.end,
            lambda: self.inspect("ends"),
            self.schedules.end,
            self._emit_coverage,
        ):
            try:
                finish()
            except Exception as error:
                self.failed("shutdown", error)
        self.phase_now = "ended"
        if self.heart is not None:
            self.heart.beat((time.monotonic(), self.last_loss, self.losses.total, self.loaders.fetches), "ended")
        self.emit("process-exiting", step=self.step, reason=reason)

    def _end_values(self):
        if self.fast_path.has_pending():
            self.fast_path.leave()
        self.scalars.fetch()
        self.steps.end()


def _find_capturing_cuda(torch):
    """Return torch.cuda if this torch can report whether a graph is being captured, otherwise None."""
    cuda = getattr(torch, "cuda", None)
    return cuda if hasattr(cuda, "is_current_stream_capturing") and hasattr(cuda, "_initialized") else None


def _to_int(text, default):
    try:
        return int(text)
    except (TypeError, ValueError):
        return default
