"""What is known of one step while it is made, and how it becomes a line: its own at first, part of a window later."""

import math

from .event_writer import short

LINES_OF_THEIR_OWN = 1000
"""The first steps of a process each get a line."""
ODD_LINES = 200
"""And so do this many odd ones after that."""
LINES_AT_ONCE = 100
HELD_SECONDS = 0.2
"""After the first hundred, lines are held together for this long and written in one go: alone, between two steps, a line
costs three times as much, because nothing of what it needs is in the caches. The heartbeat, which is exact, does not wait."""
WINDOW_STEPS = 16
WINDOWS_FOR_ALL = 8000
"""Windows grow with the number of steps so far, over this, so that a million steps stay small at any speed."""
WINDOW_SECONDS = 1.0
MAX_WINDOW_STEPS = 10000


class Record(object):
    """One step. Values that live on a device arrive later: `waiting` counts those still out.

    The defaults stand in the class, because a record is made on every step and few of its fields are ever set.
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
        """A callback for a loss that lives on a device. It comes to nothing if the loss is forgotten meanwhile."""
        return self._expect(lambda values: self.add_loss(sum(values) / len(values)))

    def add_norm(self, value):
        """Of several clipped parts, the largest norm: a lower bound of the whole that is never too high."""
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

    def forget_losses(self):
        """What was computed for a step that did not come, or for another optimizer's."""
        self.loss_sum = 0.0
        self.loss_count = self.backwards = 0
        self.norm = None
        self.generation += 1

    def _expect(self, add):
        self.waiting += 1
        generation = self.generation

        def arrived(values):
            self.waiting -= 1
            if values and generation == self.generation:
                add(values)

        return arrived

    def as_line(self):
        fields = {"step": self.number, "seconds": round(self.seconds, 6)}
        if self.data_wait:
            fields["data_wait"] = round(self.data_wait, 6)
        if self.loss_count:
            fields["loss"] = short(self.loss)
        if self.part_sums:
            fields["parts"] = {name: short(value) for name, value in self.parts.items()}
        if self.backwards != 1:
            fields["backwards"] = self.backwards
        if self.norm is not None:
            fields["grad_norm"] = short(self.norm)
        if self.lr:
            fields["lr"] = [short(rate) for rate in self.lr]
        for name in ("samples", "batch", "other_steps", "other_losses"):
            value = getattr(self, name)
            if value:
                fields[name] = value
        if self.instances is not None:
            fields["instances"] = self.instances
        return fields


def spread(values):
    """A series of numbers as the event's `WindowStats`."""
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
    """Steps in a row, folded into one line."""
    fields = {
        "first": records[0].number,
        "last": records[-1].number,
        "seconds": round(math.fsum(record.seconds for record in records), 6),
        "slowest": round(max(record.seconds for record in records), 6),
        "backwards": sum(record.backwards for record in records),
    }
    data_wait = math.fsum(record.data_wait for record in records)
    if data_wait:
        fields["data_wait"] = round(data_wait, 6)
    losses = [record.loss for record in records if record.loss_count]
    if losses:
        fields["loss"] = spread(losses)
    norms = [record.norm for record in records if record.norm is not None]
    if norms:
        fields["grad_norm"] = spread(norms)
    if rates:
        fields["lr"] = [short(rate) for rate in rates]
    samples = sum(record.samples for record in records)
    if samples:
        fields["samples"] = samples
    instances = [record.instances for record in records if record.instances is not None]
    if instances:
        fields["instances"] = sum(instances)
    batches = [record.batch for record in records if record.batch is not None]
    if batches:
        fields["batches"], fields["different"] = len(batches), len(set(batches))
    _add_named(fields, records)
    return fields


def _add_named(fields, records):
    parts, other_steps = {}, {}
    for record in records:
        for name, value in record.parts.items() if record.part_sums else ():
            parts.setdefault(name, []).append(value)
        for name, steps in record.other_steps.items() if record.other_steps else ():
            other_steps[name] = other_steps.get(name, 0) + steps
    if parts:
        fields["parts"] = {name: spread(values) for name, values in parts.items()}
    if other_steps:
        fields["other_steps"] = other_steps


class StepLog(object):
    """Turns finished steps into lines, in order, as soon as all that is known of them has arrived."""

    def __init__(self, emit, emit_all, rates):
        self._emit = emit
        self._emit_all = emit_all
        self._rates = rates
        self._queue = []
        self._held = []
        self._held_since = 0.0
        self._window = []
        self._window_began = 0.0
        self._window_steps = WINDOW_STEPS
        self._written = 0
        self._lines = 0
        self._odd_left = ODD_LINES
        self._nonfinite = self._zero = self._strange = self._nonzero_seen = False
        self.writes_each = True
        """Whether steps still get a line of their own."""
        self.writes_at_once = True
        """Whether that line is still written before the next step begins."""

    def __len__(self):
        return len(self._queue)

    def add(self, record, now):
        if record.waiting or self._queue:
            self._queue.append(record)
            self.drain(now)
        else:
            self._report(record, now)

    def drain(self, now):
        queue = self._queue
        done = 0
        while done < len(queue) and not queue[done].waiting:
            self._report(queue[done], now)
            done += 1
        del queue[:done]

    def give_up_waiting(self, now):
        """What has not arrived by now will not: the steps are written as far as they are known."""
        for record in self._queue:
            record.waiting = 0
        self.drain(now)

    def close(self, now):
        self.give_up_waiting(now)
        self.write_held()
        self._close_window()

    def _report(self, record, now):
        odd = False
        if record.loss_count:
            loss = record.loss_sum / record.loss_count
            if self._strange or loss == 0.0 or not -math.inf < loss < math.inf or not self._nonzero_seen:
                odd = self._is_odd(loss)
        if self.writes_each:
            self._lines += 1
            self.writes_each = self._lines < LINES_OF_THEIR_OWN
            self.writes_at_once = self._lines < LINES_AT_ONCE
            self._held.append(record)
            if odd or self._lines <= LINES_AT_ONCE or now - self._held_since >= HELD_SECONDS or not self.writes_each:
                self._held_since = now
                self.write_held()
            return
        if odd and self._odd_left:
            self._odd_left -= 1
            self._close_window()
            self._emit("step", **record.as_line())
            return
        window = self._window
        if not window:
            self._window_began = now
        window.append(record)
        count = len(window)
        if count >= self._window_steps and (now - self._window_began >= WINDOW_SECONDS or count >= MAX_WINDOW_STEPS):
            self._close_window()

    def write_held(self):
        """Before any other event, so that the lines stay in the order in which things happened."""
        held, self._held = self._held, []
        if held:
            self._emit_all("step", [record.as_line() for record in held])

    def _close_window(self):
        if self._window:
            records, self._window = self._window, []
            self._written += len(records)
            self._window_steps = max(WINDOW_STEPS, self._written // WINDOWS_FOR_ALL)
            self._emit("steps", **window_line(records, self._rates()))

    def _is_odd(self, loss):
        """The loss stopped being finite, became finite again, or fell to exactly zero."""
        nonfinite = not -math.inf < loss < math.inf
        zero = loss == 0.0
        odd = nonfinite != self._nonfinite or (zero and not self._zero and self._nonzero_seen)
        self._nonfinite, self._zero = nonfinite, zero
        self._strange = nonfinite or zero
        if not zero:
            self._nonzero_seen = True
        return odd
