"""Snapshots of a whole training of Ultralytics, between any two of its batches, and going on from one as if nothing had been.

The trainer's loop reads its batches through `enumerate`; in its module that name becomes ours. Between two batches all that the
training is made of stands still: there a snapshot is taken, and there one is given back. A training that goes on is started by
the user's own command, in the folder that it had, and made to begin with the epoch that it was in; then the first batch asked for
is the one that would have come next.
"""

import builtins
import ctypes
import os
import sys
import time
import weakref

from ... import protocol
from ...bootstrap import is_multiprocessing_helper
from ...snapshots.ahead import ReadAhead
from ...snapshots.fingerprint import differences, fingerprint
from ...snapshots.randomness import draw_on_from, drawn_so_far
from ...snapshots.store import Store
from ...snapshots.taking import snapshots_of_this_run
from ...snapshots.trace import Trace
from . import best, last
from .loading import Loading
from .state import TrainerState
from .tested import why_not_exact
from .validation import told_apart_by
from .watcher import SOURCE, wrap_method

LOOP = "_do_train"
SEEN = "seen: ultralytics, between any two batches"
NOT_COMPARED = frozenset(
    ("save_dir", "name", "project", "exist_ok", "resume", "device", "verbose", "plots", "save_period")
)
"""Settings that change no number, or that the fingerprint knows in another way."""
OF_THE_SAME = ("task", "data", "epochs", "model")
"""What two trainings that are the same have in common."""
OF_THE_ORDER = ("batch", "data", "fraction", "rect", "workers")


class Exact(object):
    def __init__(self, probe, watcher, validation=None):
        """`validation` is what was wished for of it."""
        self._probe = probe
        self._validation = told_apart_by(validation or {})
        self._torch = probe.torch
        self._watcher = watcher
        self._run_folder = os.environ.get(protocol.SNAPSHOTS)
        self._trainings = 0
        """How many trainers were made in this process: each has snapshots of its own."""
        self._folder = None
        self._ahead = None
        self._found = None
        """The snapshot that the newest trainer is to go on from, until its training has begun."""
        self._trainer = None
        self._state = None
        self._fingerprint = {}
        self._going_on = None
        self._loading = None
        self._position = 0
        self._saved = None
        """The epoch that last.pt is of."""
        self._keeping = None
        self._trace = None
        self._snapshots = None
        self._expected = None
        """How large a state will be, until room for it is made."""
        self._off = False

    def watch(self, module):
        """`ultralytics.engine.trainer` is imported."""
        why = why_not_exact(module) if self._run_folder else "there is no folder for snapshots"
        if why is not None:
            self._probe.see("snapshots", "not seen: %s" % why)
            self._off = True
            return
        if os.environ.get(protocol.RESUME) == "snapshot" and not is_multiprocessing_helper():
            self._ahead = ReadAhead(self._torch, Store(self._run_folder))
        module.enumerate = self._enumerate
        wrap_method(module.BaseTrainer, "__init__", self._around_init)
        wrap_method(module.BaseTrainer, "save_model", self._around_save)

    # --- before the training -------------------------------------------------------------------------------------

    def goes_on(self, overrides):
        """Whether the next training, which is asked for in these words, goes on from a snapshot."""
        if self._off:
            return False
        found = self._found_for(self._trainings + 1)
        if found is None or os.environ.get(protocol.RESUME) == SOURCE:
            return False
        return _why_another(found.header.get("asked", {}), _asked(overrides)) is None

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
            trainer._holdfast_asked = _asked(overrides)
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
        return original(trainer, *args, **kwargs)

    def _on_train_start(self, trainer):
        self._trainer = self._loading = self._going_on = None
        why = _why_not_this(trainer)
        if why is None and not hasattr(trainer, "_holdfast_asked"):
            why = "it was not seen how the trainer was made"
        if why is not None:
            self._probe.see("snapshots", "not seen: %s" % why)
            return
        self._trainer = weakref.ref(trainer)
        self._state = TrainerState(self._torch, trainer)
        self._fingerprint = self._fingerprint_of(trainer)
        self._position, self._saved = 0, None
        self._snapshots = snapshots_of_this_run(self._torch, Store(self._folder), self._tell)
        # On a device a loss is read later: asking for it here would make the training wait.
        self._trace = Trace(self._folder, self._tell) if trainer.device.type == "cpu" else None
        self._probe.see("snapshots", SEEN)
        self._begin(trainer)
        self._expected = (
            self._state.bytes_expected() if self._going_on is None else os.path.getsize(self._going_on.path)
        )

    def _begin(self, trainer):
        """With the snapshot that was found, or afresh."""
        found, self._found = self._found, None
        why = None if found is None else self._state.why_not(found.state["trainer"])
        if why is not None:
            self._watcher.note("the snapshot is of another model: the training starts over", why)
            self._probe.starts_over()
        elif found is None and os.environ.get(protocol.RESUME) == "snapshot":
            self._watcher.note("there is no snapshot that this training can go on from", self._folder)
            if not trainer.args.resume:
                self._probe.starts_over()
        if found is None or why is not None:
            if self._trace is not None:
                self._trace.begins()
            return
        os.environ.pop(protocol.RESUME, None)  # processes that this one starts are not to go on from it again
        self._going_on = found
        trainer.start_epoch = found.state["place"]["epoch"]
        trainer.scheduler.last_epoch = trainer.start_epoch - 1
        self._probe.goes_on_from(found.step)

    def _on_model_save(self, trainer):
        if self._is_ours(trainer) and self._snapshots is not None:
            self._saved = trainer.epoch
            self._keeping = last.Keeping(self._folder, trainer)

    def _around_save(self, original, trainer, args, kwargs):
        self._wait_for_last()
        return original(trainer, *args, **kwargs)

    def _wait_for_last(self):
        """Until what was saved before is copied."""
        keeping, self._keeping = self._keeping, None
        with self._watcher.never_raising("keeping last.pt"):
            if keeping is not None:
                keeping.wait()

    def _on_train_end(self, trainer):
        if self._is_ours(trainer) and self._snapshots is not None:
            self._snapshots.settle()
            self._wait_for_last()
            Store(self._folder).clear()
            last.clear(self._folder)
            self._trainer = None

    # --- the loop ------------------------------------------------------------------------------------------------

    def _enumerate(self, iterable, start=0):
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or iterable is not getattr(trainer, "train_loader", None):
            return builtins.enumerate(iterable, start)
        return self._batches(trainer, iterable)

    def _batches(self, trainer, loader):
        """What the loop reads instead of its loader."""
        first, count = 0, len(loader)
        if self._loading is None or self._loading.loader is not loader:
            self._loading = Loading(self._torch, loader)
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
        """So many batches of the epoch are done. Before and after a validation one is taken wherever it can be afforded."""
        if self._snapshots is None:
            return
        with self._watcher.never_raising("a snapshot"):
            if self._snapshots.due(self._position) or (done in (0, count) and self._snapshots.affordable()):
                began = time.monotonic()
                self._snapshots.settle()
                self._take(trainer, done, count)
                self._probe.paused(time.monotonic() - began)

    def _copied(self):
        """What was begun before a batch was read ends before the training does anything with that batch."""
        if self._snapshots is None:
            return
        with self._watcher.never_raising("a snapshot's copy"):
            began = time.monotonic()
            self._snapshots.copied()
            self._probe.paused(time.monotonic() - began)

    def _make_room(self):
        """Once, after workers were forked: they are not to share it."""
        expected, self._expected = self._expected, None
        if expected is not None and self._snapshots is not None:
            self._snapshots.make_room(expected)

    def _take(self, trainer, done, count):
        frame = _frame_of(LOOP)
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
        # A batch that is read here and now is time in which nothing of the training changes.
        reads_next = done < count and not trainer.train_loader.num_workers
        self._snapshots.take(self._position, self._probe.step, collect, more, beside=reads_next)

    def _give_back(self, trainer, count):
        """Returns the number of the epoch's first batch that is still to be made."""
        found, self._going_on = self._going_on, None
        other = differences(found.header.get("fingerprint", {}), self._fingerprint)
        changed = _changed(found.header.get("fingerprint", {}), self._fingerprint)
        state, place = found.state, found.state["place"]
        frame = _frame_of(LOOP)
        self._state.give_back(trainer, state["trainer"], changed)
        if found.header.get("fingerprint", {}).get(best.BY) != self._fingerprint.get(best.BY):
            best.forget(trainer)
        first = place["done"]
        if place["of"] != count or any(name in changed for name in OF_THE_ORDER):
            first = count if first >= place["of"] else round(first * count / place["of"])
            self._loading.begin_at(first if first < count else 0)
            stepped = place["epoch"] * count + first - 1
        else:
            self._loading.go_on(state["loading"])
            stepped = place["last_opt_step"]
        if frame is not None:
            set_local(frame, "last_opt_step", stepped)
        self._saved = place["saved"]
        last.give_back(self._folder, trainer, self._saved)
        self._position = found.position
        if self._trace is not None:
            self._trace.goes_on_from(found.position)
        self._watcher.batches_done(first)
        _advance_bar(first)
        draw_on_from(self._torch, state["rng"])
        self._tell("restored", step=found.step, path=found.path, exact=not other, why="; ".join(other)[:500])
        return first

    # --- small parts ---------------------------------------------------------------------------------------------

    def _is_ours(self, trainer):
        return self._trainer is not None and self._trainer() is trainer

    def _fingerprint_of(self, trainer):
        found = fingerprint(self._torch, {"model": trainer.model})
        from ultralytics import __version__

        found["ultralytics"] = __version__
        opencv = sys.modules.get("cv2")
        found["opencv"] = getattr(opencv, "__version__", None)
        found["pictures"] = _pictures(trainer.train_loader.dataset)
        found["workers"] = trainer.train_loader.num_workers
        found.update(self._validation)
        for name, value in vars(trainer.args).items():
            if name not in NOT_COMPARED:
                found["setting " + name] = str(value)
        return found

    def _torn(self, path, why):
        self._tell("snapshot-torn", path=path, why=why)

    def _tell(self, event, **fields):
        self._probe.claim("ultralytics")
        self._probe.emit(event, **fields)


def _why_not_this(trainer):
    """Why snapshots are not taken of this training, or None."""
    if getattr(trainer, "world_size", 0) > 1 or os.environ.get("RANK", "-1") not in ("-1", "0"):
        return "several devices: exactly going on was not tried there"
    if getattr(trainer.args, "time", None):
        return "time=%s: how many epochs there are depends on the clock" % trainer.args.time
    if type(trainer.train_loader).__name__ != "InfiniteDataLoader" or trainer.train_loader.generator is None:
        return "its loader is a %s" % type(trainer.train_loader).__name__
    if getattr(trainer.args, "compile", False):
        return "compile=%s was not tried" % trainer.args.compile
    return None


def _asked(overrides):
    """A training's own words, as far as they tell it from others."""
    return {name: str(overrides[name]) for name in OF_THE_SAME if overrides.get(name) is not None}


def _why_another(then, now):
    """What shows that a snapshot is of another training, or None."""
    both = [name for name in OF_THE_SAME if name in then and name in now and name != "epochs"]
    return next(("%s is %s there and %s here" % (n, then[n], now[n]) for n in both if then[n] != now[n]), None)


def _changed(then, now):
    """Names of settings that are not what they were."""
    names = [name for name in set(then) | set(now) if then.get(name) != now.get(name)]
    return {name.split(" ", 1)[-1] for name in names if name.startswith("setting ")} | {
        name for name in names if name in ("workers", "pictures")
    }


def _pictures(dataset):
    """Which pictures there are, in few letters."""
    import hashlib

    files = getattr(dataset, "im_files", None)
    if files is None:
        return len(dataset)
    return hashlib.sha256("\n".join(os.path.basename(str(path)) for path in files).encode("utf-8")).hexdigest()[:16]


def _frame_of(name):
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


def set_local(frame, name, value):
    """A local variable of a function that is running. Python 3.13 writes through by itself."""
    known = frame.f_locals
    known[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _advance_bar(done):
    """The progress bar begins where the epoch does."""
    frame = _frame_of("__iter__")
    bar = None if frame is None else frame.f_locals.get("self")
    if bar is not None and hasattr(bar, "n") and hasattr(bar, "last_print_n"):
        bar.n = bar.last_print_n = done
