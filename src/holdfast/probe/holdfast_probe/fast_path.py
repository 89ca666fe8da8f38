"""The fast path through the hooks, for trainings with short steps.

After a step's own work the caches are cold, and every line of Python takes several times as long as in a tight loop.
All of the hooks together take a tenth of a 1 ms step, and 3% of a 10 ms step. Most of that time goes into finding out
what is unusual about a step. So if nothing was unusual about the last step, the next few take the fast path. It counts,
times and reads the loss as usual and keeps the values. Everything else is left to every sixteenth step, which does it
for all of them at once. Anything unusual (another optimizer, a second backward, an evaluation, the end of a pass, a
device) ends the fast path immediately.
"""

from threading import get_ident
from time import monotonic, time

from .step_log import Record

MAX_STEP_SECONDS = 0.05
EVERY = 16
"""One of this many steps always takes the full path, where inspectors may inspect it (inspectors/sampling.py)."""


class FastPath(object):
    def __init__(self, probe):
        self._probe = probe
        self.on = False
        self.begun = False
        """Whether a step began while the fast path was on: `Steps` does not know about that step."""
        self.steps, self.seconds = 0, 0.0
        """Steps that took the fast path since the last step that did not, and their duration."""
        self._pending = []
        """(number, end time, seconds, loss, norm, wait for data, batches, learning rates) of steps that are not
        recorded yet."""
        self._loss = self._norm = None
        self._waited, self._fetched = 0.0, 0
        """Values of the current step."""
        self._backwards = self._fetches = 0
        """Totals of the run."""
        self._left = 0
        self._until = self._ended_at = 0.0
        self._thread = None
        self._writes_rates = False
        self._beat = None
        self._optimizer = None
        """Weak reference to the primary optimizer, the only one that steps."""
        self._iterator = lambda: None
        self._tensor = probe.torch.Tensor
        self._is_grad_enabled = probe.torch.is_grad_enabled
        self._graph_task = getattr(probe.torch._C, "_current_graph_task_id", lambda: -1)

    def decide(self):
        """Decide, at the end of a step on the full path, whether the next steps take the fast path."""
        probe = self._probe
        steps = probe.steps
        left = EVERY - 2 - (probe.step & (EVERY - 1))
        self.on = (
            left > 0
            and probe.awake
            and not probe.watching
            and not steps.recorder.writes_at_once
            and probe.budget.step_seconds < MAX_STEP_SECONDS
            and probe.world_size == 1
            and probe.heart is not None
            and not probe.scalars.count
            and not len(steps.recorder)
            and not probe.scaler.ever
            and not probe.loaders.evaluating
            and probe.loaders.instances_of is None
            and steps.is_plain()
        )
        if self.on:
            self._left = left
            self._until = min(probe.due_at, probe.supervisor_watch.next_at)
            self._optimizer = steps.primary_reference
            self._iterator = probe.loaders.latest[0]
            self._thread = probe.scalars.thread
            self._writes_rates = steps.recorder.writes_each
            self._beat = probe.heart.make_step_writer()
            self._ended_at = steps.ended_at
            self._backwards, self._fetches = probe.losses.total, probe.loaders.fetches

    # --- called from torch_patches -------------------------------------------------------------------------------

    def begin_fetch(self, iterator):
        """Return True if the usual loader is read for training: then its batch is like the last one."""
        if self._iterator() is iterator and self._is_grad_enabled():
            return True
        self.leave()
        return False

    def end_fetch(self, waited):
        """Record a fetch for which `begin_fetch` returned True."""
        if self.on:
            self._waited += waited
            self._fetched += 1
            self._fetches += 1
        else:  # a dataset may read another loader itself
            self._probe.loaders.count_usual_fetches(1, self._probe.steps.record, waited)

    def begin_backward(self, args):
        """Return True for an ordinary first backward of a step, and for one that is nested in another."""
        if self._graph_task() != -1:
            return True
        loss = args[0] if args else None
        try:
            if (
                self._loss is None
                and type(loss) is self._tensor
                and loss.is_cpu
                and loss.numel() == 1
                and get_ident() == self._thread
            ):
                self._loss = self._probe.last_loss = loss.item()
                self._backwards += 1
                return True
        except Exception as error:
            self._probe.failed("the fast path of a backward", error)
        self.leave()
        return False

    def add_norm(self, norm):
        """Keep the gradient norm, and return True if that was possible."""
        if type(norm) is self._tensor and norm.is_cpu:
            value = norm.item()
            if self._norm is None or not value <= self._norm:  # as Record.add_norm
                self._norm = value
            return True
        self.leave()
        return False

    def begin_step(self, optimizer):
        """Return True if this is a step of the primary optimizer."""
        if self._optimizer() is optimizer:
            self.begun = True
            return True
        self.leave()
        return False

    def end_step(self, optimizer):
        """Count the step and return True if it was an ordinary one. A single function: every call costs time."""
        probe = self._probe
        loss = self._loss
        if self._optimizer() is not optimizer or loss is None or probe.pause_seconds:
            self.leave()
            return False
        now = monotonic()
        probe.step = number = probe.step + 1
        try:
            self._beat(number, time(), now, loss, self._backwards, self._fetches)
            rates = probe.steps.rates() if self._writes_rates else ()
            step = (number, now, now - self._ended_at, loss, self._norm, self._waited, self._fetched, rates)
            self._pending.append(step)
            self._ended_at = now
            self._loss = self._norm = None
            self._waited, self._fetched = 0.0, 0
            self.begun = False
            self._left -= 1
            if now >= self._until:
                probe.supervisor_watch.check(now)
                self._until = min(probe.due_at, probe.supervisor_watch.next_at)
            if not self._left or now >= self._until or not loss or loss - loss != 0.0:
                self.leave()  # a zero or non-finite loss is written immediately
        except Exception as error:
            probe.failed("the fast path of a step", error)
            self.leave()
        return True

    # --- back to the full path -----------------------------------------------------------------------------------

    def has_pending(self):
        """Return True if the fast path has data that the full path does not have yet."""
        return self.on or bool(self._pending) or self._loss is not None or self._norm is not None or self._fetched > 0

    def leave(self):
        """Return to the full path, and hand over what is known about the current step."""
        self.on = False
        if get_ident() != self._thread:
            return  # a thread that prefetches data: the training thread hands over at the end of its step
        try:
            self.settle()
            record = self._probe.steps.record
            if self._fetched:
                self._probe.loaders.count_usual_fetches(self._fetched, record, self._waited)
            if self._loss is not None:
                self._probe.losses.total += 1
                record.add_loss(self._loss)
                record.backwards += 1
            if self._norm is not None:
                record.add_norm(self._norm)
        except Exception as error:
            self._probe.failed("the end of the fast path", error)
        self._loss = self._norm = None
        self._waited, self._fetched = 0.0, 0

    def settle(self):
        """Record all pending steps, on the training thread. A Ctrl-C may interrupt, so they are removed one by one."""
        pending, steps = self._pending, self._probe.steps
        while pending:
            self._record_step(steps, *pending.pop(0))

    def _record_step(self, steps, number, ended_at, seconds, loss, norm, waited, fetched, rates):
        probe = self._probe
        probe.losses.total += 1
        probe.heart.written_at = ended_at
        steps.count_fast_step(ended_at)
        self.steps += 1
        self.seconds += seconds
        record = Record()
        record.number, record.seconds, record.lr = number, seconds, rates
        record.loss_sum, record.loss_count, record.backwards = loss, 1, 1
        record.norm = norm
        if fetched:
            probe.loaders.count_usual_fetches(fetched, record, waited)
        steps.recorder.add(record, ended_at)
