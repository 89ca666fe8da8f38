"""Snapshots of a whole Ultralytics training between any two batches, and exact resuming from them.

The loop of the trainer reads its batches through `enumerate`; in its module that name is replaced. Between two batches
nothing in the training changes: snapshots are taken and restored there. The user's own command starts the resumed
training, in the same folder, and it begins with the interrupted epoch. The first batch that it requests is the one that
would have come next.
"""

import builtins
import contextlib
import os
import time
import weakref

from ... import protocol
from ...bootstrap import is_multiprocessing_helper
from ...devices import is_accelerator
from ...snapshots.fingerprint import differences
from ...snapshots.loss_trace import LossTrace
from ...snapshots.prefetch import Prefetch
from ...snapshots.rng import get_rng_states, set_rng_states
from ...snapshots.snapshotter import make_snapshotter
from ...snapshots.store import Store
from . import best_metric
from .callbacks import wrap_method
from .fingerprint import changed_settings, make_fingerprint, select_identity, why_other_training
from .last_pt import LastPtCopies
from .loader import ResumableLoader
from .loop_frame import LOOP, advance_bar, find_frame, set_local
from .supported_versions import why_not_exact
from .trainer_state import TrainerState, restore_csv
from .validation import describe_validation

SEEN = "ultralytics, between any two batches"
ORDER_SETTINGS = ("batch", "data", "fraction", "images", "rect", "workers")
START_SETTINGS = ("pretrained", "seed")
"""Settings that have no effect once a training has begun."""


class CannotResume(RuntimeError):
    """The snapshot is only partly restored: training from there would use a state that this training never had."""


class ExactResume(object):
    def __init__(self, probe, callbacks, validation=None):
        """`validation` contains the validation overrides."""
        self._probe = probe
        self._validation = describe_validation(validation or {})
        self._torch = probe.torch
        self._callbacks = callbacks
        self._run_folder = os.environ.get(protocol.SNAPSHOTS)
        self._trainings = 0
        """How many trainers were created in this process: each has its own snapshots."""
        self._folder = None
        self._prefetch = None
        self._snapshot = None
        """The snapshot that the newest trainer will resume from, until its training has begun."""
        self._trainer = None
        self._state = None
        self._fingerprint = {}
        self._resume_from = None
        self._loader = None
        self._position = 0
        self._last_pt_epoch = None
        """The epoch that last.pt was saved after."""
        self._copies = None
        self._reported = set()
        self._trace = None
        self._snapshotter = None
        self._expected = None
        """The expected size of a state, until memory for it is allocated."""
        self._is_disabled = False

    def watch(self, module):
        """Wrap the trainer when `ultralytics.engine.trainer` is imported."""
        why = why_not_exact(module) if self._run_folder else "there is no snapshot folder"
        if why is not None:
            self._probe.miss("snapshots", why)
            self._is_disabled = True
            return
        if os.environ.get(protocol.RESUME) == "snapshot" and not is_multiprocessing_helper():
            self._prefetch = Prefetch(self._torch, Store(self._run_folder))
        module.enumerate = self._enumerate
        wrap_method(module.BaseTrainer, "__init__", self._around_init)
        wrap_method(module.BaseTrainer, "save_model", self._around_save)

    # --- before the training -------------------------------------------------------------------------------------

    def can_resume(self, overrides):
        """Return whether the next training, with these overrides, resumes from a snapshot."""
        if self._is_disabled:
            return False
        snapshot = self._find_snapshot(self._trainings + 1)
        if snapshot is None or os.environ.get(protocol.RESUME) == "framework":
            return False
        return why_other_training(snapshot.header.get("asked", {}), select_identity(overrides)) is None

    def _find_snapshot(self, number):
        folder = self._run_folder if number == 1 else os.path.join(self._run_folder, "training-%d" % number)
        if folder != self._folder:
            self._folder = folder
            prefetch, self._prefetch = self._prefetch, None
            if prefetch is not None and folder == self._run_folder:
                self._snapshot = prefetch.read_newest(self._report_corrupt)
            else:
                self._snapshot = Store(folder).read_newest(self._torch, self._report_corrupt)
        return self._snapshot

    def _around_init(self, original, trainer, args, kwargs):
        with self._callbacks.report_errors("finding a snapshot"):
            overrides = (args[1] if len(args) > 1 else kwargs.get("overrides")) or {}
            trainer._holdfast_identity = select_identity(overrides)
            can_resume = self.can_resume(overrides)
            self._trainings += 1
            if not can_resume:
                self._snapshot = None
            else:
                overrides = dict(overrides, save_dir=self._snapshot.header["save_dir"])
                if len(args) > 1:
                    args = (args[0], overrides, *args[2:])
                else:
                    kwargs = dict(kwargs, overrides=overrides)
        result = original(trainer, *args, **kwargs)
        if self._snapshot is not None:  # immediately: a crash before the first batch must not lose the existing rows
            with self._note_os_errors("the rows of results.csv could not be restored"):
                restore_csv(trainer, self._snapshot.state["trainer"])
        return result

    def _on_train_start(self, trainer):
        self._trainer = self._loader = self._resume_from = None
        why = _why_no_snapshots(trainer)
        if why is None and not hasattr(trainer, "_holdfast_identity"):
            why = "the creation of the trainer was not observed"
        if why is not None:
            self._probe.miss("snapshots", why)
            return
        self._trainer = weakref.ref(trainer)
        self._state = TrainerState(self._torch, trainer)
        self._fingerprint = make_fingerprint(self._torch, trainer, self._validation)
        self._position, self._last_pt_epoch = 0, None
        self._snapshotter = make_snapshotter(self._torch, Store(self._folder), self._emit)
        self._copies = LastPtCopies(Store(self._folder))
        # On a device the loss is read later: reading it here would make the training wait.
        self._trace = None if is_accelerator(trainer.device) else LossTrace(self._folder, self._emit)
        self._probe.see("snapshots", SEEN)
        self._begin(trainer)
        self._expected = (
            self._state.expected_bytes() if self._resume_from is None else os.path.getsize(self._resume_from.path)
        )

    def _begin(self, trainer):
        """Start from the snapshot that was found, or from the beginning."""
        snapshot, self._snapshot = self._snapshot, None
        why = None if snapshot is None else self._state.why_incompatible(snapshot.state["trainer"])
        if why is not None:
            self._callbacks.note("the snapshot belongs to another model: the training starts over", why)
            self._probe.set_fresh_start()
            with self._note_os_errors("results.csv could not be removed"):
                os.unlink(str(trainer.csv))
        elif snapshot is None and os.environ.get(protocol.RESUME) == "snapshot":
            self._callbacks.note("there is no snapshot that this training can resume from", self._folder)
            if not trainer.args.resume:
                self._probe.set_fresh_start()
        if snapshot is None or why is not None:
            if self._trace is not None:
                self._trace.clear()
            with self._callbacks.report_errors("copies of last.pt"):
                self._copies.clear()
            return
        os.environ.pop(protocol.RESUME, None)  # processes started by this one must not resume from it again
        self._resume_from = snapshot
        trainer.start_epoch = snapshot.state["place"]["epoch"]
        trainer.scheduler.last_epoch = trainer.start_epoch - 1
        self._probe.set_resumed_step(snapshot.step)

    def _on_model_save(self, trainer):
        if self._is_current(trainer) and self._snapshotter is not None:
            self._last_pt_epoch = trainer.epoch
            self._copies.start_copy(trainer)

    def _around_save(self, original, trainer, args, kwargs):
        self._wait_for_last_pt()
        return original(trainer, *args, **kwargs)

    def _wait_for_last_pt(self):
        """Wait until the previous last.pt is copied."""
        with self._note_os_errors("last.pt could not be copied next to the snapshots"):
            if self._copies is not None:
                self._copies.wait()

    def _on_train_end(self, trainer):
        if self._is_current(trainer) and self._snapshotter is not None:
            self._snapshotter.flush()
            self._wait_for_last_pt()
            Store(self._folder).clear()
            self._copies.clear()
            self._trainer = None

    # --- the loop ------------------------------------------------------------------------------------------------

    def _enumerate(self, iterable, start=0):
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or iterable is not getattr(trainer, "train_loader", None):
            return builtins.enumerate(iterable, start)
        return self._batches(trainer, iterable)

    def _batches(self, trainer, loader):
        """Yield what the loop reads instead of its loader."""
        first, count = 0, len(loader)
        if self._loader is None or self._loader.loader is not loader:
            self._loader = ResumableLoader(self._torch, loader)
        resumable = self._loader
        if self._resume_from is not None:
            first = self._restore(trainer, count)
        else:
            self._take_if_due(trainer, 0, count)
        for batch in range(first, count):
            try:
                loaded = resumable.next()
            finally:
                self._wait_until_copied()
            self._preallocate()
            yield batch, loaded
            self._position += 1
            if self._trace is not None:
                self._trace.add(self._position, self._probe.step, trainer.loss.detach().item())
            self._take_if_due(trainer, batch + 1, count)

    def _take_if_due(self, trainer, done, count):
        """Take a snapshot if it is due. `done` batches of the epoch are done. Before and after a validation, take one
        if the budget allows.
        """
        if self._snapshotter is None:
            return
        with self._callbacks.report_errors("a snapshot"):
            if self._snapshotter.is_due(self._position) or (done in (0, count) and self._snapshotter.is_affordable()):
                began = time.monotonic()
                self._snapshotter.flush()
                self._take(trainer, done, count)
                self._probe.paused(time.monotonic() - began)

    def _wait_until_copied(self):
        """Wait for a copy that was started before a batch was read, before the training uses that batch."""
        if self._snapshotter is None:
            return
        with self._callbacks.report_errors("a snapshot's copy"):
            began = time.monotonic()
            self._snapshotter.wait_until_copied()
            self._probe.paused(time.monotonic() - began)

    def _preallocate(self):
        """Allocate memory once, after the workers were forked: they must not share it."""
        expected, self._expected = self._expected, None
        if expected is not None and self._snapshotter is not None:
            self._snapshotter.preallocate(expected)

    def _take(self, trainer, done, count):
        frame = find_frame(LOOP)
        if frame is None:
            self._snapshotter = None
            self._probe.miss("snapshots", "the training loop was not found")
            return
        place = {
            "epoch": trainer.epoch,
            "done": done,
            "of": count,
            "last_opt_step": frame.f_locals["last_opt_step"],
            "saved": self._last_pt_epoch,
        }

        def collect():
            return {
                "trainer": self._state.get_state(trainer),
                "place": place,
                "loading": self._loader.state(),
                "rng": get_rng_states(self._torch),
            }

        header_fields = {
            "asked": trainer._holdfast_identity,
            "save_dir": str(trainer.save_dir),
            "fingerprint": self._fingerprint,
        }
        # While a batch is loaded in this process, nothing in the training changes.
        reads_next = done < count and not trainer.train_loader.num_workers
        self._copies.add_snapshot(self._position, self._last_pt_epoch)
        self._snapshotter.take(self._position, self._probe.step, collect, header_fields, in_background=reads_next)

    def _restore(self, trainer, count):
        """Restore the snapshot. Return the number of the first batch of the epoch that is not done yet."""
        snapshot, self._resume_from = self._resume_from, None
        then = snapshot.header.get("fingerprint", {})
        differing, changed = differences(then, self._fingerprint), changed_settings(then, self._fingerprint)
        with self._stop_on_failure(snapshot):
            self._state.restore(trainer, snapshot.state["trainer"], changed)
            if then.get(best_metric.FINGERPRINT_KEY) != self._fingerprint.get(best_metric.FINGERPRINT_KEY):
                best_metric.reset_best(trainer)
            first = self._set_place(snapshot, count, changed)
        self._restore_last_pt(trainer)
        with self._callbacks.report_errors("setting the resume position"):
            if self._trace is not None:
                self._trace.resume_from(snapshot.position)
            self._callbacks.set_batches_done(first)
            advance_bar(first)
            ineffective = ", ".join(name for name in START_SETTINGS if name in changed)
            if ineffective:
                self._callbacks.note("these settings have no effect on a resumed training: " + ineffective)
        with self._stop_on_failure(snapshot):
            set_rng_states(self._torch, snapshot.state["rng"])
        self._emit(
            "restored", step=snapshot.step, path=snapshot.path, exact=not differing, why="; ".join(differing)[:500]
        )
        return first

    def _set_place(self, snapshot, count, changed):
        """Set the position in the training, its epoch and its loader. Return the first batch that is not done yet."""
        place = snapshot.state["place"]
        self._position, self._last_pt_epoch = snapshot.position, place["saved"]
        first = place["done"]
        if place["of"] != count or any(name in changed for name in ORDER_SETTINGS):
            first = count if first >= place["of"] else round(first * count / place["of"])
            self._loader.start_at(first if first < count else 0)
            last_opt_step = place["epoch"] * count + first - 1
        else:
            self._loader.load_state(snapshot.state["loading"])
            last_opt_step = place["last_opt_step"]
        frame = find_frame(LOOP)
        if frame is not None:
            set_local(frame, "last_opt_step", last_opt_step)
        return first

    def _restore_last_pt(self, trainer):
        failure = "last.pt could not be restored to what it was at the snapshot"
        with self._note_os_errors(failure):
            why = self._copies.restore(self._torch, trainer, self._position, self._last_pt_epoch)
            if why is not None:
                self._callbacks.note(failure, why + "; after a NaN, Ultralytics would resume from the existing file")

    @contextlib.contextmanager
    def _note_os_errors(self, what):
        """Report once if a file fails that the training can do without, for example on a full disk."""
        with self._callbacks.report_errors(what):
            try:
                yield
            except OSError as error:
                if what not in self._reported:
                    self._reported.add(what)
                    self._callbacks.note(what, str(error))

    @contextlib.contextmanager
    def _stop_on_failure(self, snapshot):
        """Stop the training if restoring fails. This happens nowhere else: resuming from half of a state would silently
        corrupt it.
        """
        try:
            yield
        except Exception as error:
            raise CannotResume(
                "Holdfast could not restore this training from its snapshot %s (%s: %s) and stopped it before training "
                "from a partly restored state. If you can fix the cause, continue with `holdfast resume`; or remove %s "
                "first: then it resumes from its last.pt or starts over."
                % (snapshot.path, type(error).__name__, str(error)[:500], self._folder)
            ) from error

    # --- helpers -------------------------------------------------------------------------------------------------

    def _is_current(self, trainer):
        return self._trainer is not None and self._trainer() is trainer

    def _report_corrupt(self, path, why, foreign):
        if foreign:
            self._emit("probe-note", what="a snapshot was skipped", detail="%s: %s" % (path, why))
        else:
            self._emit("snapshot-corrupt", path=path, why=why)

    def _emit(self, event, **fields):
        self._probe.claim("ultralytics")
        self._probe.emit(event, **fields)


def _why_no_snapshots(trainer):
    """Return why no snapshots are taken of this training, or None."""
    if getattr(trainer, "world_size", 0) > 1 or os.environ.get("RANK", "-1") not in ("-1", "0"):
        return "several devices: exact resuming was not tested there"
    if getattr(trainer.args, "time", None):
        return "time=%s: the number of epochs depends on the elapsed time" % trainer.args.time
    if type(trainer.train_loader).__name__ != "InfiniteDataLoader" or trainer.train_loader.generator is None:
        return "its loader is a %s" % type(trainer.train_loader).__name__
    if getattr(trainer.args, "compile", False):
        return "compile=%s was not tested" % trainer.args.compile
    return None
