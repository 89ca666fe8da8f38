"""Reading of data: how long the training waits for it, what it gets, and where epochs and evaluations begin and end.

An iteration over a DataLoader trains if gradients are enabled while it is read; if it reaches its end without a single
backward in between, it was an evaluation all the same (many loops disable gradients only around the model).
"""

import weakref
from time import monotonic

from .batch_info import batch_hash, batch_size

HASH_EVERY_STEP_ABOVE = 0.05
HASHED_AT_FIRST = 64
"""Where steps are shorter than this many seconds, and after the first few, one batch in sixteen is hashed."""


NOTHING_YET = (lambda: None, None)
OWN_SAMPLERS = frozenset(("torch.utils.data.sampler", "torch.utils.data.distributed"))


def _weakly(thing):
    try:
        return weakref.ref(thing)
    except TypeError:  # a list, for instance
        return lambda: thing


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
        """The adapter that tells epochs, if one does."""
        self.instances_of = None
        """An adapter's function from a batch to its number of labelled objects, or None where it cannot tell."""
        self.fetches = 0
        self._epoch = 0
        self._iterations = weakref.WeakKeyDictionary()
        self._latest = NOTHING_YET
        """A weak reference to the iterator read last, and its iteration: nearly always the one read next."""
        self._training_dataset = None
        self._other_exhaustions = 0
        self.interrupted = 0.0
        """Seconds of saving and of snapshots within the evaluation at hand."""
        self._evaluation_began = 0.0
        self._evaluation_fetches = 0
        self._batches_seen = self._length_told = False
        self._usual_size = 0
        self._grad_enabled = probe.torch.is_grad_enabled

    def usual_fetches(self, count, record, waited):
        """So many like the last that was looked at, for this step."""
        self.fetches += count
        record.data_wait += waited
        record.samples += count * self._usual_size
        iteration = self._latest[1]
        if iteration is not None:  # a dataset may read another loader itself, and that may have come to its end
            iteration.fetches += count

    def usual_exhausted(self, iterator):
        """The loader that is read as ever came to its end."""
        iteration = self._latest[1]
        if iteration is not None:
            self.exhausted(iterator, (iteration, True, 0.0, "training"))

    def latest_reference(self):
        """The iterator that was read last, weakly."""
        return self._latest[0]

    # --- the door ------------------------------------------------------------------------------------------------

    def fetch_begins(self, iterator):
        """A token for `fetched`, `exhausted` or `fetch_failed`; None when nothing is to be recorded."""
        probe = self.probe
        if not probe.awake and not probe.claim("fetch"):
            return None
        now = monotonic()
        try:
            latest = self._latest
            iteration = latest[1] if latest[0]() is iterator else self._iteration(iterator, now)
            training = self._grad_enabled()
            if training:
                if self.evaluating:
                    self.training_resumed(now)
                phase = probe.phase("waiting for data")
                probe.pulse(now)
            else:
                if not self.evaluating:
                    self._evaluation_begins(now)
                phase = "evaluating"
            began = monotonic()
            probe.budget.base += began - now
            return iteration, training, began, phase
        except Exception as error:
            probe.failed("the beginning of a fetch", error)
            return None

    def fetched(self, token, batch):
        probe = self.probe
        now = monotonic()
        try:
            iteration, training, fetch_began, phase = token
            self.fetches += 1
            iteration.fetches += 1
            probe.pulse(now)
            if training:
                probe.phase("training" if phase == "waiting for data" else phase)
                self._training_batch(batch, now - fetch_began)
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
            if probe.quick.on:
                probe.quick.leave()  # workers that outlive a pass are read through the same iterator again
            iteration, training, _, phase = token
            now = monotonic()
            self._iterations.pop(iterator, None)
            self._latest = NOTHING_YET
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

    def _iteration(self, iterator, now):
        iteration = self._iterations.get(iterator)
        if iteration is None:
            iteration = _Iteration(now, self.probe.losses.total, self.probe.steps.record)
            self._iterations[iterator] = iteration
        self._latest = (weakref.ref(iterator), iteration)
        return iteration

    def _training_batch(self, batch, waited):
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
        if not self._length_told and probe.steps.source == "optimizer":
            self._length_told = True
            self._tell_length(self._latest[0]())
        if record.batch is None and (
            self.fetches <= HASHED_AT_FIRST
            or probe.budget.step_seconds > HASH_EVERY_STEP_ABOVE
            or not self.fetches & 15
        ):
            record.batch = batch_hash(probe.torch, batch)

    def _tell_length(self, iterator):
        """Where torch's own sampler knows it: one of the user's may draw random numbers to count its batches."""
        sampler = getattr(iterator, "_index_sampler", None)
        inner = getattr(sampler, "sampler", sampler)
        if not all(type(part).__module__ in OWN_SAMPLERS for part in (sampler, inner)):
            return
        try:
            batches = len(sampler)
        except (TypeError, AttributeError, NotImplementedError):  # a stream: nobody knows
            return
        self.probe.emit("loader", step=self.probe.step, batches=batches, samples=self._usual_size)

    def _training_exhausted(self, iterator, iteration, now):
        """One dataset's exhaustions are the epochs: the first that was exhausted, until another takes over for good."""
        if self.epochs_known_by is not None:
            return
        dataset = getattr(iterator, "_dataset", None)
        before = self._training_dataset
        another = before is not None and before() is not None and before() is not dataset
        if another:  # one that is gone was replaced: many make dataset and loader anew for each epoch
            self._other_exhaustions += 1
            if self._other_exhaustions <= 2:
                return
        self._training_dataset = _weakly(dataset)
        self._other_exhaustions = 0
        self._epoch += 1
        self.epoch_ended(self._epoch, now - iteration.began, iteration.fetches, "loader")

    def epoch_ended(self, epoch, seconds, batches, source, planned=None):
        probe = self.probe
        self._epoch = epoch
        probe.see("epochs")
        if probe.heart is not None:
            probe.heart.epoch(epoch)
        fields = {
            "epoch": epoch,
            "step": probe.step,
            "seconds": round(seconds, 6),
            "batches": batches,
            "source": source,
        }
        if planned is not None:
            fields["planned"] = planned
        probe.emit("epoch", **fields)

    # --- evaluation ----------------------------------------------------------------------------------------------

    def _evaluation_begins(self, now):
        self.evaluating = True
        self._evaluation_began = now
        self._evaluation_fetches = 0
        self.interrupted = 0.0
        self.probe.phase("evaluating")

    def training_resumed(self, now):
        """A training fetch, a backward or a step ends an evaluation."""
        self.evaluating = False
        self.probe.phase("training")
        self._evaluated(max(0.0, now - self._evaluation_began - self.interrupted), self._evaluation_fetches)

    def _evaluation_exhausted(self, iteration, now):
        """Read to the end with gradients enabled, and no backward: what it added to the step at hand is taken back."""
        record = iteration.record
        if record is self.probe.steps.record:
            record.data_wait, record.samples, record.batch, record.instances = iteration.record_before
        self._evaluated(now - iteration.began, iteration.fetches)

    def _evaluated(self, seconds, fetches):
        probe = self.probe
        probe.paused(seconds)
        probe.see("evaluations")
        probe.emit("evaluation", step=probe.step, seconds=round(seconds, 6), fetches=fetches)

    def end(self):
        if self.evaluating:
            self.training_resumed(monotonic())
