"""The record of one step, and how it becomes an event: a line for each step at first, one for many steps later."""

import math

from .event_writer import short

SINGLE_LINES = 1000
"""The first steps of a process get one line each."""
MAX_ODD_LINES = 200
"""After that, this many unusual steps get their own line."""
IMMEDIATE_LINES = 100
PENDING_SECONDS = 0.2
"""After the first hundred, lines are collected for this long and written together. Writing a single line between two
steps costs three times as much, because nothing that it needs is in the caches. The heartbeat, which is exact, does not
wait."""
MIN_WINDOW_STEPS = 16
TARGET_WINDOWS = 8000
"""Windows grow with the number of steps so far divided by this, so that the file of a million steps stays small at any
speed."""
WINDOW_SECONDS = 1.0
MAX_WINDOW_STEPS = 10000


class Record(object):
    """One step. Values that are on a device arrive later: `waiting` counts those that are still missing. The defaults
    are class attributes, because a record is created for every step and few of its fields are ever set.
    """

    number = 0
    seconds = 0.0
    data_wait = 0.0
    loss_sum = 0.0
    loss_count = 0
    backwards = 0
    norm = None
    lr = ()
    samples = 0
    instances = None
    batch = None
    other_steps = None
    other_losses = None
    part_sums = None
    waiting = 0
    generation = 0

    @property
    def loss(self):
        return self.loss_sum / self.loss_count if self.loss_count else None

    @property
    def parts(self):
        return {name: total / count for name, (total, count) in (self.part_sums or {}).items()}

    def add_loss(self, value):
        self.loss_sum += value
        self.loss_count += 1

    def expect_loss(self):
        """Return a callback for a loss that is on a device. It does nothing if the losses were discarded since."""
        return self._expect(lambda values: self.add_loss(sum(values) / len(values)))

    def add_norm(self, value):
        """Keep the largest norm if gradients are clipped in several parts: a lower bound of the total norm."""
        if self.norm is None or not value <= self.norm:
            self.norm = value

    def expect_norm(self):
        return self._expect(lambda values: self.add_norm(values[0]))

    def add_part(self, name, value):
        if self.part_sums is None:
            self.part_sums = {}
        total, count = self.part_sums.get(name, (0.0, 0))
        self.part_sums[name] = (total + value, count + 1)

    def expect_part(self, name):
        return self._expect(lambda values: self.add_part(name, values[0]))

    def discard_losses(self):
        """Discard what was computed for a step that did not happen, or for another optimizer's step."""
        self.loss_sum = 0.0
        self.loss_count = self.backwards = 0
        self.norm = None
        self.generation += 1

    def _expect(self, add):
        self.waiting += 1
        generation = self.generation

        def on_values(values):
            self.waiting -= 1
            if values and generation == self.generation:
                add(values)

        return on_values

    def to_fields(self):
        return _without_none(
            {
                "step": self.number,
                "seconds": round(self.seconds, 6),
                "data_wait": round(self.data_wait, 6) if self.data_wait else None,
                "loss": short(self.loss) if self.loss_count else None,
                "parts": {name: short(value) for name, value in self.parts.items()} if self.part_sums else None,
                "backwards": self.backwards if self.backwards != 1 else None,
                "grad_norm": None if self.norm is None else short(self.norm),
                "lr": [short(rate) for rate in self.lr] or None,
                "samples": self.samples or None,
                "batch": self.batch or None,
                "other_steps": self.other_steps or None,
                "other_losses": self.other_losses or None,
                "instances": self.instances,
            }
        )


def _without_none(fields):
    return {name: value for name, value in fields.items() if value is not None}


def summarize(values):
    """Return the statistics of a series of numbers as the event's `WindowStats`."""
    finite = [value for value in values if -math.inf < value < math.inf]
    fields = {"n": len(finite)}
    if finite:
        fields["mean"] = short(math.fsum(finite) / len(finite))
        fields["low"], fields["high"] = short(min(finite)), short(max(finite))
        fields["first"], fields["last"] = short(finite[0]), short(finite[-1])
        zeros = finite.count(0.0)
        if zeros:
            fields["zeros"] = zeros
    if len(finite) < len(values):
        fields["nonfinite"] = len(values) - len(finite)
    return fields


def window_line(records, rates):
    """Return consecutive steps combined into one line."""
    data_wait = math.fsum(record.data_wait for record in records)
    losses = [record.loss for record in records if record.loss_count]
    norms = [record.norm for record in records if record.norm is not None]
    instances = [record.instances for record in records if record.instances is not None]
    batches = [record.batch for record in records if record.batch is not None]
    parts, other_steps = {}, {}
    for record in records:
        for name, value in record.parts.items() if record.part_sums else ():
            parts.setdefault(name, []).append(value)
        for name, steps in record.other_steps.items() if record.other_steps else ():
            other_steps[name] = other_steps.get(name, 0) + steps
    return _without_none(
        {
            "first": records[0].number,
            "last": records[-1].number,
            "seconds": round(math.fsum(record.seconds for record in records), 6),
            "slowest": round(max(record.seconds for record in records), 6),
            "backwards": sum(record.backwards for record in records),
            "data_wait": round(data_wait, 6) if data_wait else None,
            "loss": summarize(losses) if losses else None,
            "grad_norm": summarize(norms) if norms else None,
            "lr": [short(rate) for rate in rates] or None,
            "samples": sum(record.samples for record in records) or None,
            "instances": sum(instances) if instances else None,
            "batches": len(batches) or None,
            "different": len(set(batches)) or None,
            "parts": {name: summarize(values) for name, values in parts.items()} or None,
            "other_steps": other_steps or None,
        }
    )


class StepLog(object):
    """Turns finished steps into lines, in order, as soon as all their values have arrived."""

    def __init__(self, emit, emit_all, rates):
        self._emit = emit
        self._emit_all = emit_all
        self._rates = rates
        self._queue = []
        self._pending = []
        self._pending_since = 0.0
        self._window = []
        self._window_began = 0.0
        self._window_steps = MIN_WINDOW_STEPS
        self._written = 0
        self._lines = 0
        self._odd_left = MAX_ODD_LINES
        self._nonfinite = self._zero = self._strange = self._nonzero_seen = False
        self.writes_each = True
        """Whether each step still gets its own line."""
        self.writes_at_once = True
        """Whether that line is still written before the next step begins."""

    def __len__(self):
        return len(self._queue)

    def add(self, record, now):
        if record.waiting or self._queue:
            self._queue.append(record)
            self.drain(now)
        else:
            self._write(record, now)

    def drain(self, now):
        queue = self._queue
        done = 0
        while done < len(queue) and not queue[done].waiting:
            self._write(queue[done], now)
            done += 1
        del queue[:done]

    def give_up_waiting(self, now):
        """Write the queued steps without the values that are still missing: they will not arrive any more."""
        for record in self._queue:
            record.waiting = 0
        self.drain(now)

    def close(self, now):
        self.give_up_waiting(now)
        self.write_pending()
        self._close_window()

    def _write(self, record, now):
        odd = False
        if record.loss_count:
            loss = record.loss_sum / record.loss_count
            if self._strange or loss == 0.0 or not -math.inf < loss < math.inf or not self._nonzero_seen:
                odd = self._is_odd(loss)
        if self.writes_each:
            self._lines += 1
            self.writes_each = self._lines < SINGLE_LINES
            self.writes_at_once = self._lines < IMMEDIATE_LINES
            self._pending.append(record)
            if (
                odd
                or self._lines <= IMMEDIATE_LINES
                or now - self._pending_since >= PENDING_SECONDS
                or not self.writes_each
            ):
                self._pending_since = now
                self.write_pending()
            return
        if odd and self._odd_left:
            self._odd_left -= 1
            self._close_window()
            self._emit("step", **record.to_fields())
            return
        window = self._window
        if not window:
            self._window_began = now
        window.append(record)
        count = len(window)
        if count >= self._window_steps and (now - self._window_began >= WINDOW_SECONDS or count >= MAX_WINDOW_STEPS):
            self._close_window()

    def write_pending(self):
        """Write the collected lines. This runs before any other event is written, so that the lines stay in order."""
        pending, self._pending = self._pending, []
        if pending:
            self._emit_all("step", [record.to_fields() for record in pending])

    def _close_window(self):
        if self._window:
            records, self._window = self._window, []
            self._written += len(records)
            self._window_steps = max(MIN_WINDOW_STEPS, self._written // TARGET_WINDOWS)
            self._emit("steps", **window_line(records, self._rates()))

    def _is_odd(self, loss):
        """Return True if the loss became non-finite, became finite again, or fell to exactly zero."""
        nonfinite = not -math.inf < loss < math.inf
        zero = loss == 0.0
        odd = nonfinite != self._nonfinite or (zero and not self._zero and self._nonzero_seen)
        self._nonfinite, self._zero = nonfinite, zero
        self._strange = nonfinite or zero
        if not zero:
            self._nonzero_seen = True
        return odd
