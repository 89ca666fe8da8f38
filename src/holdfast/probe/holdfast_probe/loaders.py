"""Data loading: how long the training waits for data, what it gets, and where epochs and evaluations begin and end.

An iteration over a DataLoader counts as training if gradients are enabled while it is read. If it ends without a single
backward, it was an evaluation after all (many loops disable gradients only around the model).
"""

import weakref
from time import monotonic

from .batch_info import batch_hash, batch_size

HASH_EVERY_STEP_ABOVE = 0.05
HASHED_AT_FIRST = 64
"""If steps are shorter than this many seconds, only one batch in sixteen is hashed after the first ones."""


NO_ITERATION = (lambda: None, None)
TORCH_SAMPLERS = frozenset(("torch.utils.data.sampler", "torch.utils.data.distributed"))


def _weak_reference(value):
    try:
        return weakref.ref(value)
    except TypeError:  # a list, for instance
        return lambda: value


class _Iteration(object):
    __slots__ = ("backwards", "began", "fetches", "record", "record_before")

    def __init__(self, began, backwards, record):
        self.began = began
        self.backwards = backwards
        self.fetches = 0
        self.record = record
        self.record_before = (record.data_wait, record.samples, record.batch, record.instances)


class Loaders(object):
    def __init__(self, probe):
        self.probe = probe
        self.evaluating = False
        self.epochs_known_by = None
        """The framework that reports epochs, if there is one."""
        self.instances_of = None
        """A framework's function that returns the number of labelled objects in a batch, or None if it is unknown."""
        self.fetches = 0
        self._epoch = 0
        self._iterations = weakref.WeakKeyDictionary()
        self.latest = NO_ITERATION
        """A weak reference to the iterator that was read last, and its iteration. The next read nearly always uses the
        same one."""
        self._training_dataset = None
        self._other_exhaustions = 0
        self.interrupted = 0.0
        """Seconds spent on saving and snapshots during the current evaluation."""
        self._evaluation_began = 0.0
        self._evaluation_fetches = 0
        self._batches_seen = self._length_emitted = False
        self._usual_size = 0
        self._grad_enabled = probe.torch.is_grad_enabled

    def count_usual_fetches(self, count, record, waited):
        """Count fetches of batches that are like the last inspected one, for this step."""
        self.fetches += count
        record.data_wait += waited
        record.samples += count * self._usual_size
        iteration = self.latest[1]
        if iteration is not None:  # a dataset may read another loader itself, and that loader may have reached its end
            iteration.fetches += count

    def usual_loader_exhausted(self, iterator):
        """Handle the end of the loader that is read on the fast path."""
        iteration = self.latest[1]
        if iteration is not None:
            self.exhausted(iterator, (iteration, True, 0.0, "training"))

    # --- called from torch_patches -------------------------------------------------------------------------------

    def begin_fetch(self, iterator):
        """Return a token for `end_fetch`, `exhausted` or `fetch_failed`, or None if nothing is recorded."""
        probe = self.probe
        if not probe.awake and not probe.claim("fetch"):
            return None
        now = monotonic()
        try:
            latest = self.latest
            iteration = latest[1] if latest[0]() is iterator else self._get_iteration(iterator, now)
            training = self._grad_enabled()
            if training:
                if self.evaluating:
                    self.training_resumed(now)
                phase = probe.phase("waiting for data")
                probe.pulse(now)
            else:
                if not self.evaluating:
                    self._begin_evaluation(now)
                phase = "evaluating"
            began = monotonic()
            probe.budget.base += began - now
            return iteration, training, began, phase
        except Exception as error:
            probe.failed("the start of a fetch", error)
            return None

    def end_fetch(self, token, batch):
        probe = self.probe
        now = monotonic()
        try:
            iteration, training, fetch_began, phase = token
            self.fetches += 1
            iteration.fetches += 1
            probe.pulse(now)
            if training:
                probe.phase("training" if phase == "waiting for data" else phase)
                self._record_batch(batch, now - fetch_began)
            else:
                self._evaluation_fetches += 1
            if now >= probe.memory.next_at:
                probe.memory.sample(now)
        except Exception as error:
            probe.failed("the end of a fetch", error)
        finally:
            probe.budget.base += monotonic() - now

    def exhausted(self, iterator, token):
        probe = self.probe
        try:
            if probe.fast_path.on:
                probe.fast_path.leave()  # with persistent workers, the next pass uses the same iterator again
            iteration, training, _, phase = token
            now = monotonic()
            self._iterations.pop(iterator, None)
            self.latest = NO_ITERATION
            if not training:
                return
            probe.phase("training" if phase == "waiting for data" else phase)
            if probe.losses.total > iteration.backwards:
                self._training_exhausted(iterator, iteration, now)
            elif iteration.fetches:
                self._evaluation_exhausted(iteration, now)
        except Exception as error:
            probe.failed("the end of a loader", error)

    def fetch_failed(self, token):
        if token[1]:
            self.probe.phase(token[3])

    # --- training ------------------------------------------------------------------------------------------------

    def _get_iteration(self, iterator, now):
        iteration = self._iterations.get(iterator)
        if iteration is None:
            iteration = _Iteration(now, self.probe.losses.total, self.probe.steps.record)
            self._iterations[iterator] = iteration
        self.latest = (weakref.ref(iterator), iteration)
        return iteration

    def _record_batch(self, batch, waited):
        probe = self.probe
        record = probe.steps.record
        record.data_wait += waited
        self._usual_size = batch_size(batch)
        record.samples += self._usual_size
        if self.instances_of is not None:
            instances = self.instances_of(batch)
            if instances is not None:
                record.instances = (record.instances or 0) + instances
        if not self._batches_seen:
            self._batches_seen = True
            probe.see("batches")
        if not self._length_emitted and probe.steps.source == "optimizer":
            self._length_emitted = True
            self._emit_length(self.latest[0]())
        if record.batch is None and (
            self.fetches <= HASHED_AT_FIRST
            or probe.budget.step_seconds > HASH_EVERY_STEP_ABOVE
            or not self.fetches & 15
        ):
            record.batch = batch_hash(probe.torch, batch)

    def _emit_length(self, iterator):
        """Emit the number of batches. A user's sampler may draw random numbers to count them, so it is not asked."""
        sampler = getattr(iterator, "_index_sampler", None)
        inner = getattr(sampler, "sampler", sampler)
        if not all(type(part).__module__ in TORCH_SAMPLERS for part in (sampler, inner)):
            return
        try:
            batches = len(sampler)
        except (TypeError, AttributeError, NotImplementedError):  # a stream of unknown length
            return
        self.probe.emit("loader", step=self.probe.step, batches=batches, samples=self._usual_size)

    def _training_exhausted(self, iterator, iteration, now):
        """Count an epoch when the training dataset is exhausted. That is the first dataset to be exhausted, until
        another one replaces it permanently.
        """
        if self.epochs_known_by is not None:
            return
        dataset = getattr(iterator, "_dataset", None)
        before = self._training_dataset
        another = before is not None and before() is not None and before() is not dataset
        if another:  # a deleted dataset was replaced: many programs recreate dataset and loader for each epoch
            self._other_exhaustions += 1
            if self._other_exhaustions <= 2:
                return
        self._training_dataset = _weak_reference(dataset)
        self._other_exhaustions = 0
        self._epoch += 1
        self.epoch_ended(self._epoch, now - iteration.began, iteration.fetches, "loader")

    def epoch_ended(self, epoch, seconds, batches, source, planned=None):
        probe = self.probe
        self._epoch = epoch
        probe.see("epochs")
        if probe.heart is not None:
            probe.heart.epoch(epoch)
        fields = {} if planned is None else {"planned": planned}
        probe.emit(
            "epoch", epoch=epoch, step=probe.step, seconds=round(seconds, 6), batches=batches, source=source, **fields
        )

    # --- evaluation ----------------------------------------------------------------------------------------------

    def _begin_evaluation(self, now):
        self.evaluating = True
        self._evaluation_began = now
        self._evaluation_fetches = 0
        self.interrupted = 0.0
        self.probe.phase("evaluating")

    def training_resumed(self, now):
        """End an evaluation, because of a training fetch, a backward or a step."""
        self.evaluating = False
        self.probe.phase("training")
        self._emit_evaluation(max(0.0, now - self._evaluation_began - self.interrupted), self._evaluation_fetches)

    def _evaluation_exhausted(self, iteration, now):
        """Record an evaluation with gradients but without a backward. Undo what it added to the current step."""
        record = iteration.record
        if record is self.probe.steps.record:
            record.data_wait, record.samples, record.batch, record.instances = iteration.record_before
        self._emit_evaluation(now - iteration.began, iteration.fetches)

    def _emit_evaluation(self, seconds, fetches):
        probe = self.probe
        probe.paused(seconds)
        probe.see("evaluations")
        probe.emit("evaluation", step=probe.step, seconds=round(seconds, 6), fetches=fetches)

    def end(self):
        if self.evaluating:
            self.training_resumed(monotonic())
