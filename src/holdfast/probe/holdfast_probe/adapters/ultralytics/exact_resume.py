"""Snapshots of a whole Ultralytics training between any two batches, and exact resuming from them.

The loop of the trainer reads its batches through `enumerate`; in its module that name is replaced. Between two batches nothing in the
training changes: snapshots are taken and restored there. The user's own command starts the resumed training, in the same folder, and
it begins with the interrupted epoch. The first batch that it requests is the one that would have come next.
"""

import builtins
import contextlib
import os
import time
import weakref

from ... import protocol
from ...bootstrap import is_multiprocessing_helper
from ...snapshots.fingerprint import differences
from ...snapshots.loss_trace import LossTrace
from ...snapshots.prefetch import Prefetch
from ...snapshots.rng import draw_on_from, drawn_so_far
from ...snapshots.snapshotter import snapshots_of_this_run
from ...snapshots.store import Store
from . import best_metric
from .callbacks import SOURCE, wrap_method
from .fingerprint import asked, changed_settings, fingerprint_of, why_another
from .last_pt import LastPtCopies
from .loader import ResumableLoader
from .loop_frame import LOOP, advance_bar, frame_of, set_local
from .supported_versions import why_not_exact
from .trainer_state import TrainerState, give_csv_back
from .validation import told_apart_by

SEEN = "seen: ultralytics, between any two batches"
OF_THE_ORDER = ("batch", "data", "fraction", "images", "rect", "workers")
OF_THE_BEGINNING = ("pretrained", "seed")
"""Settings that have no effect once a training has begun."""


class CannotResume(RuntimeError):
    """The snapshot is only partly restored: training from there would use a state that this training never had."""


class ExactResume(object):
    def __init__(self, probe, watcher, validation=None):
        """`validation` contains the validation overrides."""
        self._probe = probe
        self._validation = told_apart_by(validation or {})
        self._torch = probe.torch
        self._watcher = watcher
        self._run_folder = os.environ.get(protocol.SNAPSHOTS)
        self._trainings = 0
        """How many trainers were created in this process: each has its own snapshots."""
        self._folder = None
        self._ahead = None
        self._found = None
        """The snapshot that the newest trainer will resume from, until its training has begun."""
        self._trainer = None
        self._state = None
        self._fingerprint = {}
        self._going_on = None
        self._loading = None
        self._position = 0
        self._saved = None
        """The epoch that last.pt was saved after."""
        self._copies = None
        self._said = set()
        self._trace = None
        self._snapshots = None
        self._expected = None
        """The expected size of a state, until memory for it is allocated."""
        self._off = False

    def watch(self, module):
        """Wrap the trainer when `ultralytics.engine.trainer` is imported."""
        why = why_not_exact(module) if self._run_folder else "there is no snapshot folder"
        if why is not None:
            self._probe.see("snapshots", "not seen: %s" % why)
            self._off = True
            return
        if os.environ.get(protocol.RESUME) == "snapshot" and not is_multiprocessing_helper():
            self._ahead = Prefetch(self._torch, Store(self._run_folder))
        module.enumerate = self._enumerate
        wrap_method(module.BaseTrainer, "__init__", self._around_init)
        wrap_method(module.BaseTrainer, "save_model", self._around_save)

    # --- before the training -------------------------------------------------------------------------------------

    def goes_on(self, overrides):
        """Return whether the next training, with these overrides, resumes from a snapshot."""
        if self._off:
            return False
        found = self._found_for(self._trainings + 1)
        if found is None or os.environ.get(protocol.RESUME) == SOURCE:
            return False
        return why_another(found.header.get("asked", {}), asked(overrides)) is None

    def _found_for(self, number):
        folder = self._run_folder if number == 1 else os.path.join(self._run_folder, "training-%d" % number)
        if folder != self._folder:
            self._folder = folder
            ahead, self._ahead = self._ahead, None
            if ahead is not None and folder == self._run_folder:
                self._found = ahead.newest(self._torn)
            else:
                self._found = Store(folder).newest(self._torch, self._torn)
        return self._found

    def _around_init(self, original, trainer, args, kwargs):
        with self._watcher.never_raising("finding a snapshot"):
            overrides = (args[1] if len(args) > 1 else kwargs.get("overrides")) or {}
            trainer._holdfast_asked = asked(overrides)
            goes_on = self.goes_on(overrides)
            self._trainings += 1
            if not goes_on:
                self._found = None
            else:
                overrides = dict(overrides, save_dir=self._found.header["save_dir"])
                if len(args) > 1:
                    args = (args[0], overrides, *args[2:])
                else:
                    kwargs = dict(kwargs, overrides=overrides)
        made = original(trainer, *args, **kwargs)
        if self._found is not None:  # immediately: a crash before the first batch must not lose the existing rows
            with self._noted("the rows of results.csv could not be restored"):
                give_csv_back(trainer, self._found.state["trainer"])
        return made

    def _on_train_start(self, trainer):
        self._trainer = self._loading = self._going_on = None
        why = _why_not_this(trainer)
        if why is None and not hasattr(trainer, "_holdfast_asked"):
            why = "the creation of the trainer was not observed"
        if why is not None:
            self._probe.see("snapshots", "not seen: %s" % why)
            return
        self._trainer = weakref.ref(trainer)
        self._state = TrainerState(self._torch, trainer)
        self._fingerprint = fingerprint_of(self._torch, trainer, self._validation)
        self._position, self._saved = 0, None
        self._snapshots = snapshots_of_this_run(self._torch, Store(self._folder), self._tell)
        self._copies = LastPtCopies(Store(self._folder))
        # On a device the loss is read later: reading it here would make the training wait.
        self._trace = LossTrace(self._folder, self._tell) if trainer.device.type == "cpu" else None
        self._probe.see("snapshots", SEEN)
        self._begin(trainer)
        self._expected = (
            self._state.bytes_expected() if self._going_on is None else os.path.getsize(self._going_on.path)
        )

    def _begin(self, trainer):
        """Start from the snapshot that was found, or from the beginning."""
        found, self._found = self._found, None
        why = None if found is None else self._state.why_not(found.state["trainer"])
        if why is not None:
            self._watcher.note("the snapshot belongs to another model: the training starts over", why)
            self._probe.starts_over()
            with self._noted("results.csv could not be removed"):
                os.unlink(str(trainer.csv))
        elif found is None and os.environ.get(protocol.RESUME) == "snapshot":
            self._watcher.note("there is no snapshot that this training can resume from", self._folder)
            if not trainer.args.resume:
                self._probe.starts_over()
        if found is None or why is not None:
            if self._trace is not None:
                self._trace.begins()
            with self._watcher.never_raising("copies of last.pt"):
                self._copies.clear()
            return
        os.environ.pop(protocol.RESUME, None)  # processes started by this one must not resume from it again
        self._going_on = found
        trainer.start_epoch = found.state["place"]["epoch"]
        trainer.scheduler.last_epoch = trainer.start_epoch - 1
        self._probe.goes_on_from(found.step)

    def _on_model_save(self, trainer):
        if self._is_ours(trainer) and self._snapshots is not None:
            self._saved = trainer.epoch
            self._copies.keep(trainer)

    def _around_save(self, original, trainer, args, kwargs):
        self._wait_for_last()
        return original(trainer, *args, **kwargs)

    def _wait_for_last(self):
        """Wait until the previous last.pt is copied."""
        with self._noted("last.pt could not be copied next to the snapshots"):
            if self._copies is not None:
                self._copies.wait()

    def _on_train_end(self, trainer):
        if self._is_ours(trainer) and self._snapshots is not None:
            self._snapshots.settle()
            self._wait_for_last()
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
        if self._loading is None or self._loading.loader is not loader:
            self._loading = ResumableLoader(self._torch, loader)
        loading = self._loading
        if self._going_on is not None:
            first = self._give_back(trainer, count)
        else:
            self._between(trainer, 0, count)
        for batch in range(first, count):
            try:
                loaded = loading.next()
            finally:
                self._copied()
            self._make_room()
            yield batch, loaded
            self._position += 1
            if self._trace is not None:
                self._trace.add(self._position, self._probe.step, trainer.loss.detach().item())
            self._between(trainer, batch + 1, count)

    def _between(self, trainer, done, count):
        """Take a snapshot if it is due. `done` batches of the epoch are done. Before and after a validation, take one if the budget allows."""
        if self._snapshots is None:
            return
        with self._watcher.never_raising("a snapshot"):
            if self._snapshots.due(self._position) or (done in (0, count) and self._snapshots.affordable()):
                began = time.monotonic()
                self._snapshots.settle()
                self._take(trainer, done, count)
                self._probe.paused(time.monotonic() - began)

    def _copied(self):
        """Wait for a copy that was started before a batch was read, before the training uses that batch."""
        if self._snapshots is None:
            return
        with self._watcher.never_raising("a snapshot's copy"):
            began = time.monotonic()
            self._snapshots.copied()
            self._probe.paused(time.monotonic() - began)

    def _make_room(self):
        """Allocate memory once, after the workers were forked: they must not share it."""
        expected, self._expected = self._expected, None
        if expected is not None and self._snapshots is not None:
            self._snapshots.make_room(expected)

    def _take(self, trainer, done, count):
        frame = frame_of(LOOP)
        if frame is None:
            self._snapshots = None
            self._probe.see("snapshots", "not seen: the training loop was not found")
            return
        place = {
            "epoch": trainer.epoch,
            "done": done,
            "of": count,
            "last_opt_step": frame.f_locals["last_opt_step"],
            "saved": self._saved,
        }

        def collect():
            return {
                "trainer": self._state.of(trainer),
                "place": place,
                "loading": self._loading.state(),
                "rng": drawn_so_far(self._torch),
            }

        more = {
            "asked": trainer._holdfast_asked,
            "save_dir": str(trainer.save_dir),
            "fingerprint": self._fingerprint,
        }
        # While a batch is loaded in this process, nothing in the training changes.
        reads_next = done < count and not trainer.train_loader.num_workers
        self._copies.snapshot_taken(self._position, self._saved)
        self._snapshots.take(self._position, self._probe.step, collect, more, beside=reads_next)

    def _give_back(self, trainer, count):
        """Restore the snapshot. Return the number of the first batch of the epoch that is not done yet."""
        found, self._going_on = self._going_on, None
        then = found.header.get("fingerprint", {})
        other, changed = differences(then, self._fingerprint), changed_settings(then, self._fingerprint)
        with self._whole_or_not_at_all(found):
            self._state.give_back(trainer, found.state["trainer"], changed)
            if then.get(best_metric.BY) != self._fingerprint.get(best_metric.BY):
                best_metric.forget(trainer)
            first = self._set_place(found, count, changed)
        self._give_last_back(trainer)
        with self._watcher.never_raising("setting the resume position"):
            if self._trace is not None:
                self._trace.goes_on_from(found.position)
            self._watcher.batches_done(first)
            advance_bar(first)
            unheard = ", ".join(name for name in OF_THE_BEGINNING if name in changed)
            if unheard:
                self._watcher.note("these settings have no effect on a resumed training: " + unheard)
        with self._whole_or_not_at_all(found):
            draw_on_from(self._torch, found.state["rng"])
        self._tell("restored", step=found.step, path=found.path, exact=not other, why="; ".join(other)[:500])
        return first

    def _set_place(self, found, count, changed):
        """Set the position in the training, its epoch and its loader. Return the first batch that is not done yet."""
        place = found.state["place"]
        self._position, self._saved = found.position, place["saved"]
        first = place["done"]
        if place["of"] != count or any(name in changed for name in OF_THE_ORDER):
            first = count if first >= place["of"] else round(first * count / place["of"])
            self._loading.begin_at(first if first < count else 0)
            stepped = place["epoch"] * count + first - 1
        else:
            self._loading.go_on(found.state["loading"])
            stepped = place["last_opt_step"]
        frame = frame_of(LOOP)
        if frame is not None:
            set_local(frame, "last_opt_step", stepped)
        return first

    def _give_last_back(self, trainer):
        not_so = "last.pt could not be restored to what it was at the snapshot"
        with self._noted(not_so):
            why = self._copies.give_back(self._torch, trainer, self._position, self._saved)
            if why is not None:
                self._watcher.note(not_so, why + "; after a NaN, Ultralytics would resume from the existing file")

    @contextlib.contextmanager
    def _noted(self, what):
        """Report once if a file fails that the training can do without, for example on a full disk."""
        with self._watcher.never_raising(what):
            try:
                yield
            except OSError as error:
                if what not in self._said:
                    self._said.add(what)
                    self._watcher.note(what, str(error))

    @contextlib.contextmanager
    def _whole_or_not_at_all(self, found):
        """Stop the training if restoring fails. This happens nowhere else: resuming from half of a state would silently corrupt it."""
        try:
            yield
        except Exception as error:
            raise CannotResume(
                "Holdfast could not restore this training from its snapshot %s (%s: %s) and stopped it before training from a partly restored state. "
                "If you can fix the cause, continue with `holdfast resume`; or remove %s first: then it resumes from its last.pt or starts over."
                % (found.path, type(error).__name__, str(error)[:500], self._folder)
            ) from error

    # --- small parts ---------------------------------------------------------------------------------------------

    def _is_ours(self, trainer):
        return self._trainer is not None and self._trainer() is trainer

    def _torn(self, path, why, foreign):
        if foreign:
            self._tell("probe-note", what="a snapshot was skipped", detail="%s: %s" % (path, why))
        else:
            self._tell("snapshot-corrupt", path=path, why=why)

    def _tell(self, event, **fields):
        self._probe.claim("ultralytics")
        self._probe.emit(event, **fields)


def _why_not_this(trainer):
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
