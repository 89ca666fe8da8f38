"""The short way through the hooks, for trainings of short steps.

After a step's own work the caches are cold, and every line of Python costs several times what it costs in a loop of its
own: all that the hooks do takes a tenth of a step of one millisecond, and 3% of one of ten. Most of it decides what is
unusual about a step. So where nothing was unusual about the last one, the next few go a shorter way, which counts, times
and reads the loss as always, keeps what it read, and leaves all else to every sixteenth step, where it is done for all of
them in one go. Anything out of the ordinary (another optimizer, a second backward, an evaluation, the end of a pass, a
device) ends it at once.
"""

from threading import get_ident
from time import monotonic, time

from .step_log import Record

SHORT_SECONDS = 0.05
EVERY = 16
"""Of so many steps one goes the long way in any case, and looks may look at it (looks/watch.py)."""


class FastPath(object):
    def __init__(self, probe):
        self._probe = probe
        self.on = False
        self.begun = False
        """Whether a step began while it was on: nobody else knows of that one."""
        self.steps, self.seconds = 0, 0.0
        """Those that went the short way since the last that did not."""
        self._made = []
        """(number, when it ended, seconds, loss, norm, wait for data, batches, learning rates) of steps that are not recorded yet."""
        self._loss = self._norm = None
        self._waited, self._fetched = 0.0, 0
        """Of the step that is being made."""
        self._backwards = self._fetches = 0
        """In all."""
        self._left = 0
        self._until = self._ended_at = 0.0
        self._thread = None
        self._writes_rates = False
        self._beat = None
        self._optimizer = None
        """The clock, weakly: the only optimizer that steps."""
        self._iterator = lambda: None
        self._tensor = probe.torch.Tensor
        self._is_grad_enabled = probe.torch.is_grad_enabled
        self._graph_task = getattr(probe.torch._C, "_current_graph_task_id", lambda: -1)

    def decide(self):
        """At the end of a step that went the long way: whether the next ones go the short one."""
        probe = self._probe
        steps = probe.steps
        left = EVERY - 2 - (probe.step & (EVERY - 1))
        self.on = (
            left > 0
            and probe.awake
            and not probe.watching
            and not steps.recorder.writes_at_once
            and probe.budget.step_seconds < SHORT_SECONDS
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
            self._until = min(probe.due_at, probe.orphan.next_at)
            self._optimizer = steps.clock_reference()
            self._iterator = probe.loaders.latest_reference()
            self._thread = probe.scalars.thread
            self._writes_rates = steps.recorder.writes_each
            self._beat = probe.heart.in_short()
            self._ended_at = steps.ended_at
            self._backwards, self._fetches = probe.losses.total, probe.loaders.fetches

    # --- the doors -----------------------------------------------------------------------------------------------

    def reads(self, iterator):
        """True where the same loader as ever is read for training: then its batch is like the last."""
        if self._iterator() is iterator and self._is_grad_enabled():
            return True
        self.leave()
        return False

    def fetched(self, waited):
        """What `reads` was True for has come."""
        if self.on:
            self._waited += waited
            self._fetched += 1
            self._fetches += 1
        else:  # a dataset may read another loader itself
            self._probe.loaders.usual_fetches(1, self._probe.steps.record, waited)

    def backward_begins(self, args):
        """True where nobody else is to hear of it: an ordinary first backward of a step, or one inside another."""
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
            self._probe.failed("the short way through a backward", error)
        self.leave()
        return False

    def clipped(self, norm):
        """True where the norm is kept."""
        if type(norm) is self._tensor and norm.is_cpu:
            value = norm.item()
            if self._norm is None or not value <= self._norm:  # as Record.add_norm
                self._norm = value
            return True
        self.leave()
        return False

    def begins(self, optimizer):
        """True where it is the clock's step."""
        if self._optimizer() is optimizer:
            self.begun = True
            return True
        self.leave()
        return False

    def ticks(self, optimizer):
        """True where it was an ordinary step of the clock: then it is counted. All in one place: every call costs."""
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
            self._made.append(step)
            self._ended_at = now
            self._loss = self._norm = None
            self._waited, self._fetched = 0.0, 0
            self.begun = False
            self._left -= 1
            if now >= self._until:
                probe.orphan.check(now)
                self._until = min(probe.due_at, probe.orphan.next_at)
            if not self._left or now >= self._until or not loss or loss - loss != 0.0:
                self.leave()  # a loss of zero, or one that is not finite, is written down at once
        except Exception as error:
            probe.failed("the short way through a step", error)
            self.leave()
        return True

    # --- the long way again --------------------------------------------------------------------------------------

    def is_ahead(self):
        """Whether it knows of anything that the long way does not."""
        return self.on or bool(self._made) or self._loss is not None or self._norm is not None or self._fetched > 0

    def leave(self):
        """From here on all goes the long way, with what is known of the step that is being made."""
        self.on = False
        if get_ident() != self._thread:
            return  # a thread that reads data ahead: the one that trains will see to it at the end of its step
        try:
            self.settle()
            record = self._probe.steps.record
            if self._fetched:
                self._probe.loaders.usual_fetches(self._fetched, record, self._waited)
            if self._loss is not None:
                self._probe.losses.total += 1
                record.add_loss(self._loss)
                record.backwards += 1
            if self._norm is not None:
                record.add_norm(self._norm)
        except Exception as error:
            self._probe.failed("the end of the short way", error)
        self._loss = self._norm = None
        self._waited, self._fetched = 0.0, 0

    def settle(self):
        """All that was made is recorded. For the thread that trains. One by one: a Ctrl-C may come in between."""
        made, steps = self._made, self._probe.steps
        while made:
            self._settle_one(steps, *made.pop(0))

    def _settle_one(self, steps, number, ended_at, seconds, loss, norm, waited, fetched, rates):
        probe = self._probe
        probe.losses.total += 1
        probe.heart.written_at = ended_at
        steps.made_quickly(ended_at)
        self.steps += 1
        self.seconds += seconds
        record = Record()
        record.number, record.seconds, record.lr = number, seconds, rates
        record.loss_sum, record.loss_count, record.backwards = loss, 1, 1
        record.norm = norm
        if fetched:
            probe.loaders.usual_fetches(fetched, record, waited)
        steps.recorder.add(record, ended_at)
