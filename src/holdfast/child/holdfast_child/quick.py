"""The short way through the hooks, for trainings of short steps.

After a step's own work the caches are cold, and every line of Python costs several times what it costs in a loop of its
own: all that the hooks do takes a tenth of a step of one millisecond, and 3% of one of ten. Most of it decides what is
unusual about a step. So where nothing was unusual about the last one, the next few go a shorter way, which counts, times
and reads the loss as always, and leaves the deciding to every sixteenth step. Anything out of the ordinary (another
optimizer, a second backward, an evaluation, the end of a pass, a device) ends it at once.
"""

from threading import get_ident
from time import monotonic, time

from .records import Record

SHORT_SECONDS = 0.05
EVERY = 16
"""Of so many steps one goes the long way in any case, and looks may look at it (looks/watch.py)."""


class Quick(object):
    def __init__(self, probe):
        self._probe = probe
        self.on = False
        self.begun = False
        """Whether a step began while it was on: nobody else knows of that one."""
        self.steps, self.seconds = 0, 0.0
        """Those that went the short way since the last that did not."""
        self._left = 0
        self._until = 0.0
        self._optimizer = None
        """The clock, weakly: the only optimizer there is."""
        self._tensor = probe.torch.Tensor
        self._is_grad_enabled = probe.torch.is_grad_enabled
        self._iterator = lambda: None

    def decide(self):
        """At the end of a step that went the long way: whether the next ones go the short one."""
        probe = self._probe
        steps = probe.steps
        left = EVERY - 2 - (probe.step & (EVERY - 1))
        self.on = (
            left > 0
            and not probe.watching
            and not steps.recorder.writes_at_once
            and probe.budget.step_seconds < SHORT_SECONDS
            and probe.world_size == 1
            and probe.heart is not None
            and not probe.scalars.count
            and not len(steps.recorder)
            and not probe.scaler.scaling
            and not probe.loaders.evaluating
            and probe.loaders.instances_of is None
            and steps.is_plain()
        )
        if self.on:
            self._left = left
            self._until = probe.due_at
            self._optimizer = steps.clock_reference()
            self._iterator = probe.loaders.latest_reference()

    def reads(self, iterator):
        """True where the same loader as ever is read for training: then its batch is like the last."""
        self.on = self._iterator() is iterator and self._is_grad_enabled()
        return self.on

    def backward_begins(self, loss):
        """True where it was an ordinary first backward of a step, and its loss is read."""
        probe = self._probe
        record = probe.steps.record
        if (
            record.backwards
            or type(loss) is not self._tensor
            or not loss.is_cpu
            or loss.numel() != 1
            or get_ident() != probe.scalars.thread
        ):
            self.on = False
            return False
        try:
            value = loss.item()
        except Exception as error:
            self._failed("a backward", error)
            return False
        record.backwards = 1
        record.loss_sum = value
        record.loss_count = 1
        probe.last_loss = value
        probe.losses.total += 1
        return True

    def ticks(self, optimizer):
        """True where it was an ordinary step of the clock: then it is counted. All in one place: every call costs."""
        probe = self._probe
        steps = probe.steps
        record = steps.record
        if self._optimizer() is not optimizer or probe.pause_seconds or not record.backwards:
            self.on = False
            return False
        now = monotonic()
        self.begun = False
        steps.entered += 1
        probe.step = number = probe.step + 1
        try:
            pulse = (now, probe.last_loss, probe.losses.total, probe.loaders.fetches)
            probe.heart.step(number, time(), pulse, "training")
            steps.record = Record()
            record.number = number
            record.seconds = seconds = steps.since_last(now)
            recorder = steps.recorder
            if recorder.writes_each:
                record.lr = steps.rates()
            recorder.add(record, now)
            self.steps += 1
            self.seconds += seconds
            if now >= probe.orphan.next_at:
                probe.orphan.check(now)
            self._left -= 1
            if not self._left or now >= self._until:
                self.on = False
        except Exception as error:
            self._failed("a step", error)
        return True

    def _failed(self, where, error):
        self.on = False
        self._probe.failed("the short way through %s" % where, error)
