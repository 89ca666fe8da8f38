"""What is known of one step while it is made, and how it becomes a line: its own at first, part of a window later."""

import math
import time

from .writer import short

LINES_OF_THEIR_OWN = 1000
"""The first steps of a process each get a line."""
ODD_LINES = 200
"""And so do this many odd ones after that."""
WINDOW_STEPS = 16
WINDOW_SECONDS = 1.0
WINDOW_STEPS_AT_MOST = 10000


class Record(object):
    """One step. Values that live on a device arrive later: `waiting` counts those still out."""

    __slots__ = (
        "backwards",
        "batch",
        "beside",
        "beside_loss",
        "data_wait",
        "generation",
        "loss_count",
        "loss_sum",
        "lr",
        "norm",
        "number",
        "parts",
        "samples",
        "seconds",
        "waiting",
    )

    def __init__(self):
        self.number = 0
        self.seconds = 0.0
        self.data_wait = 0.0
        self.loss_sum = 0.0
        self.loss_count = 0
        self.backwards = 0
        self.norm = None
        self.lr = ()
        self.samples = 0
        self.batch = None
        self.beside = None
        self.beside_loss = None
        self.parts = None
        self.waiting = 0
        self.generation = 0

    @property
    def loss(self):
        return self.loss_sum / self.loss_count if self.loss_count else None

    def expect_loss(self):
        """A callback for a loss that lives on a device. It comes to nothing if the loss is forgotten meanwhile."""
        self.waiting += 1
        generation = self.generation

        def arrived(values):
            self.waiting -= 1
            if values and generation == self.generation:
                self.add_loss(sum(values) / len(values))

        return arrived

    def add_loss(self, value):
        self.loss_sum += value
        self.loss_count += 1

    def forget_losses(self):
        """What was computed for a step that did not come, or for another optimizer's."""
        self.loss_sum = 0.0
        self.loss_count = self.backwards = 0
        self.norm = None
        self.generation += 1

    def expect_norm(self):
        self.waiting += 1
        generation = self.generation

        def arrived(values):
            self.waiting -= 1
            if values and generation == self.generation:
                self.add_norm(values[0])

        return arrived

    def add_norm(self, value):
        """Of several clipped parts, the largest norm: a lower bound of the whole that is never too high."""
        if self.norm is None or not value <= self.norm:
            self.norm = value

    def add_part(self, name, value):
        if self.parts is None:
            self.parts = {}
        total, count = self.parts.get(name, (0.0, 0))
        self.parts[name] = (total + value, count + 1)

    def part_means(self):
        return {name: total / count for name, (total, count) in self.parts.items()} if self.parts else {}

    def as_line(self):
        fields = {"step": self.number, "seconds": round(self.seconds, 6)}
        if self.data_wait:
            fields["data_wait"] = round(self.data_wait, 6)
        if self.loss_count:
            fields["loss"] = short(self.loss)
        if self.parts:
            fields["parts"] = {name: short(value) for name, value in self.part_means().items()}
        if self.backwards != 1:
            fields["backwards"] = self.backwards
        if self.norm is not None:
            fields["grad_norm"] = short(self.norm)
        if self.lr:
            fields["lr"] = [short(rate) for rate in self.lr]
        if self.samples:
            fields["samples"] = self.samples
        if self.batch is not None:
            fields["batch"] = self.batch
        if self.beside:
            fields["beside"] = self.beside
        if self.beside_loss:
            fields["beside_loss"] = self.beside_loss
        return fields


class Series(object):
    __slots__ = ("bad", "first", "high", "last", "low", "n", "total", "zeros")

    def __init__(self):
        self.n = self.zeros = self.bad = 0
        self.total = self.first = self.last = 0.0
        self.low = math.inf
        self.high = -math.inf

    def add(self, value):
        if not -math.inf < value < math.inf:
            self.bad += 1
            return
        if not self.n:
            self.first = value
        self.n += 1
        self.total += value
        self.last = value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value
        if value == 0.0:
            self.zeros += 1

    def spread(self):
        fields = {"n": self.n}
        if self.n:
            fields["mean"] = short(self.total / self.n)
            for name in ("low", "high", "first", "last"):
                fields[name] = short(getattr(self, name))
        if self.zeros:
            fields["zeros"] = self.zeros
        if self.bad:
            fields["bad"] = self.bad
        return fields


class Window(object):
    """Steps in a row, folded into one line."""

    def __init__(self):
        self.count = 0

    def add(self, record):
        if not self.count:
            self._begin(record)
        self.count += 1
        self.last = record.number
        seconds = record.seconds
        self.seconds += seconds
        if seconds > self.slowest:
            self.slowest = seconds
        self.data_wait += record.data_wait
        self.backwards += record.backwards
        self.samples += record.samples
        if record.loss_count:
            self.loss.add(record.loss_sum / record.loss_count)
        if record.norm is not None:
            self.norm.add(record.norm)
        if record.batch is not None:
            self.batches += 1
            self.different.add(record.batch)
        if record.beside:
            for name, steps in record.beside.items():
                self.beside[name] = self.beside.get(name, 0) + steps
        if record.parts:
            for name, value in record.part_means().items():
                self.parts.setdefault(name, Series()).add(value)

    def _begin(self, record):
        self.began = time.monotonic()
        self.first = record.number
        self.seconds = self.slowest = self.data_wait = 0.0
        self.backwards = self.samples = self.batches = 0
        self.different = set()
        self.loss, self.norm = Series(), Series()
        self.beside, self.parts = {}, {}

    def is_full(self, now):
        count = self.count
        return count >= WINDOW_STEPS and (now - self.began >= WINDOW_SECONDS or count >= WINDOW_STEPS_AT_MOST)

    def as_line(self, rates):
        fields = {
            "first": self.first,
            "last": self.last,
            "seconds": round(self.seconds, 6),
            "slowest": round(self.slowest, 6),
        }
        if self.data_wait:
            fields["data_wait"] = round(self.data_wait, 6)
        if self.loss.n or self.loss.bad:
            fields["loss"] = self.loss.spread()
        if self.parts:
            fields["parts"] = {name: series.spread() for name, series in self.parts.items()}
        if self.backwards:
            fields["backwards"] = self.backwards
        if self.norm.n or self.norm.bad:
            fields["grad_norm"] = self.norm.spread()
        if rates:
            fields["lr"] = [short(rate) for rate in rates]
        if self.samples:
            fields["samples"] = self.samples
        if self.batches:
            fields["batches"] = self.batches
            fields["different"] = len(self.different)
        if self.beside:
            fields["beside"] = self.beside
        return fields


class Recorder(object):
    """Turns finished steps into lines, in order, as soon as all that is known of them has arrived."""

    def __init__(self, emit, known_loss):
        self._emit = emit
        self._known_loss = known_loss
        self._queue = []
        self._window = Window()
        self._lines = 0
        self._odd_left = ODD_LINES
        self._bad = self._zero = self._nonzero_seen = False

    @property
    def writes_each(self):
        """Whether steps still get a line of their own."""
        return self._lines < LINES_OF_THEIR_OWN

    def __len__(self):
        return len(self._queue)

    def add(self, record, rates, now):
        if not record.waiting and not self._queue:
            self._report(record, rates, now)
            return
        self._queue.append(record)
        self.drain(rates, now)

    def drain(self, rates, now):
        queue = self._queue
        done = 0
        while done < len(queue) and not queue[done].waiting:
            self._report(queue[done], rates, now)
            done += 1
        del queue[:done]

    def close(self, rates, now):
        """At the end: what still waits is written as far as it is known."""
        for record in self._queue:
            record.waiting = 0
        self.drain(rates, now)
        self._close_window(rates)

    def _report(self, record, rates, now):
        loss = record.loss
        if loss is not None:
            self._known_loss(loss)
        odd = self._is_odd(loss)
        if self._lines < LINES_OF_THEIR_OWN:
            self._lines += 1
            self._emit("step", **record.as_line())
            return
        if odd and self._odd_left:
            self._odd_left -= 1
            self._close_window(rates)
            self._emit("step", **record.as_line())
            return
        window = self._window
        window.add(record)
        if window.count >= WINDOW_STEPS and window.is_full(now):
            self._close_window(rates)

    def _close_window(self, rates):
        if self._window.count:
            self._emit("steps", **self._window.as_line(rates() or ()))
            self._window.count = 0

    def _is_odd(self, loss):
        """The loss stopped being finite, became finite again, or fell to exactly zero."""
        if loss is None:
            return False
        bad = not -math.inf < loss < math.inf
        zero = loss == 0.0
        odd = bad != self._bad or (zero and not self._zero and self._nonzero_seen)
        self._bad, self._zero = bad, zero
        if not zero:
            self._nonzero_seen = True
        return odd
