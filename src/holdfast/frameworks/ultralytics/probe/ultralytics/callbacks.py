"""Loss components, labelled objects, epochs, metrics and checkpoints, from the trainer.

The methods of the trainer are wrapped on the class. Its callback lists are left alone: users replace them, and they are
pickled for other processes.
"""

import contextlib
import functools
import os
import time
import weakref

SOURCE = "ultralytics"


class Callbacks(object):
    def __init__(self, probe):
        self._probe = probe
        self._notes = []
        self.followers = []
        """Other objects whose methods of the same names are called on the events of the trainer."""
        self._trainer = None
        self._begin(None)

    def _begin(self, trainer):
        self._trainer = None if trainer is None else weakref.ref(trainer)
        self._epoch_began = time.monotonic()
        self._batches = 0
        self._has_reported_parts = False
        self._validated = False
        self._in_epoch = False

    def note(self, what, detail=""):
        """Write a note once the probe records: a resume is decided before anything trains."""
        self._notes.append((what, detail))
        self._write_notes()

    def _write_notes(self):
        while self._notes and self._probe.awake:
            self._probe.note(*self._notes.pop(0))

    def watch(self, module):
        """Wrap the trainer's methods when `ultralytics.engine.trainer` is imported."""
        trainer = getattr(module, "BaseTrainer", None)
        if trainer is None or not hasattr(trainer, "run_callbacks"):
            self._probe.miss(SOURCE, "this version has no BaseTrainer with run_callbacks")
            return
        self._probe.see(SOURCE)
        wrap_method(trainer, "run_callbacks", self._around_callbacks)
        for name, around, without in (
            ("optimizer_step", self._around_step, "loss components are reported one step late"),
            ("validate", self._around_validate, "metrics of a skipped validation look like new ones"),
            ("save_model", self._around_save, "checkpoints are saved to memory, so their paths are unknown"),
            ("final_eval", self._around_final, "the stripped checkpoints are compared with the live weights"),
        ):
            if hasattr(trainer, name):
                wrap_method(trainer, name, around)
            else:
                self._probe.miss("%s %s" % (SOURCE, name), "this version has no such method; " + without)

    # --- events of the trainer -----------------------------------------------------------------------------------

    def _around_callbacks(self, original, trainer, args, kwargs):
        result = original(trainer, *args, **kwargs)
        event = args[0] if args else kwargs.get("event")
        with self.report_errors("following " + str(event)):
            self._write_notes()
            for follower in (self, *self.followers):
                handler = getattr(follower, "_" + str(event), None)
                if handler is not None:
                    handler(trainer)
        return result

    def _on_train_start(self, trainer):
        self._begin(trainer)
        self._probe.loaders.epochs_known_by = SOURCE
        self._probe.loaders.instances_of = instances_of
        self._probe.registered_models = [weakref.ref(trainer.model)]
        saves = self._find_saves_inspector()
        if saves is not None:
            saves.averages.append(functools.partial(get_average, self._trainer))

    def set_batches_done(self, count):
        """Set how many batches of this epoch earlier attempts have done."""
        self._batches = count

    def _on_train_epoch_start(self, _trainer):
        self._epoch_began = time.monotonic()
        self._batches = 0
        self._validated = False
        self._in_epoch = True

    def _on_train_batch_start(self, _trainer):
        self._has_reported_parts = False

    def _on_train_batch_end(self, trainer):
        self._batches += 1
        if not self._has_reported_parts:
            self._report_parts(trainer)

    def _on_train_epoch_end(self, trainer):
        seconds = time.monotonic() - self._epoch_began
        self._probe.epoch_ended(trainer.epoch + 1, seconds, self._batches, SOURCE, planned=to_int(trainer.epochs))

    def _on_fit_epoch_end(self, trainer):
        """Report metrics once after each epoch, and once more after the final evaluation of best.pt."""
        final, self._in_epoch = not self._in_epoch, False
        if not trainer.metrics or not (final or self._validated):
            return
        values = to_floats(trainer.metrics)
        if not final:
            values.update(to_floats({"fitness": trainer.fitness}))
        self._probe.see("metrics")
        self._probe.emit(
            "metrics",
            step=self._probe.step,
            epoch=None if final else trainer.epoch + 1,
            values=values,
            source="%s, best.pt at the end" % SOURCE if final else SOURCE,
        )

    def _on_train_end(self, trainer):
        self._probe.loaders.instances_of = None
        if trainer.epoch + 1 < trainer.epochs:
            patience = getattr(trainer.args, "patience", None)
            detail = "epoch %d of %d, patience %s" % (trainer.epoch + 1, trainer.epochs, patience)
            what = "ultralytics ended the training before its last epoch"
            self._probe.note(what, detail, code="stopped-early")

    # --- methods of the trainer ----------------------------------------------------------------------------------

    def _around_step(self, original, trainer, args, kwargs):
        with self.report_errors("reading loss components"):
            self._report_parts(trainer)
        return original(trainer, *args, **kwargs)

    def _around_validate(self, original, trainer, args, kwargs):
        result = original(trainer, *args, **kwargs)
        self._validated = True
        return result

    def _around_save(self, original, trainer, args, kwargs):
        saves = self._find_saves_inspector()
        if saves is None:
            return original(trainer, *args, **kwargs)
        before = {}
        with self.report_errors("a checkpoint"):
            before = read_mtimes(list_checkpoints(trainer))
        with saves.collect_saves() as held_saves:
            result = original(trainer, *args, **kwargs)
        with self.report_errors("a checkpoint"):
            after = read_mtimes(list_checkpoints(trainer))
            written = [path for path in after if after[path] != before.get(path)]
            for fields in held_saves[-1:]:
                for path in written or [None]:
                    size = os.path.getsize(path) if path else fields["bytes"]
                    saves.report(dict(fields, path=path, bytes=size))
        return result

    def _around_final(self, original, trainer, args, kwargs):
        """Ignore these saves: best.pt and last.pt are stripped of the optimizer and written again, so there is nothing
        new to compare.
        """
        saves = self._find_saves_inspector()
        if saves is None:
            return original(trainer, *args, **kwargs)
        with saves.rewriting():
            return original(trainer, *args, **kwargs)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _report_parts(self, trainer):
        items = getattr(trainer, "loss_items", None)
        if items is None:
            return
        self._has_reported_parts = True
        if not isinstance(items, dict):  # before 8.4: a tensor and a tuple of names
            items = dict(zip(trainer.loss_names, items.reshape(-1)))
        self._probe.see("loss components")
        self._probe.parts({str(name): value for name, value in items.items()})

    def _find_saves_inspector(self):
        inspectors = [inner for inspector in self._probe.inspectors for inner in getattr(inspector, "inspectors", ())]
        return next((inspector for inspector in inspectors if inspector.name == "saves"), None)

    @contextlib.contextmanager
    def report_errors(self, where):
        try:
            yield
        except Exception as error:
            self._probe.failed("the part for ultralytics, " + where, error)


def wrap_method(owner, name, around):
    """Wrap a method, once per `around`. The wrapper that is added last is called first."""
    original = getattr(owner, name)
    inside = getattr(original, "_holdfast", ())
    function = getattr(around, "__func__", around)
    if function in inside:
        return

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        return around(original, self, args, kwargs)

    method._holdfast = (*inside, function)
    setattr(owner, name, method)


def instances_of(batch):
    """Return the number of labelled objects in a batch, which has one class label for each."""
    labels = batch.get("cls") if isinstance(batch, dict) else None
    shape = getattr(labels, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None


def get_average(reference):
    """Return the module with the trainer's moving average, if there is one."""
    trainer = reference()
    return getattr(getattr(trainer, "ema", None), "ema", None)


def list_checkpoints(trainer):
    paths = [trainer.last, trainer.best, trainer.wdir / ("epoch%d.pt" % trainer.epoch)]
    return [os.path.abspath(str(path)) for path in paths]


def read_mtimes(paths):
    times = {}
    for path in paths:
        with contextlib.suppress(OSError):
            times[path] = os.stat(path).st_mtime_ns
    return times


def to_int(value):
    return int(value) if value is not None else None


def to_floats(values):
    """Return the values that are numbers; metrics are floats, NumPy scalars and tensors on the host."""
    found = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            found[str(name)] = float(value)
    return found
