"""Whether a non-zero gradient changed its weight, row by row, and whether the optimizer's state moved.

Rows of a few parameters are copied before a step and compared after it, exactly. In the first steps the loan of the
budget lets every parameter have its turn; after that they rotate. A tensor with rows that did not move is looked at again
in the next step, then with the update that was to be expected: only what stayed twice is told. What stayed although it
had to move is looked at a third and a fourth time.

A step may have its gradient computed by a closure inside it. Then the gradient is read after the step.
"""

import functools
import time
import weakref
from collections import deque

from . import Inspector
from .closures import Closures
from .expected_update import kind_of
from .rate_limit import RateLimit, RunningMean
from .row_compare import NUMBERS, UNKNOWN, Around
from .tensors import bits_type, by_rows, local, trainable

MAX_BYTES = 16 << 20
"""Copies held from before a step until after it. With what comparing takes on the way it stays below 32 MB."""
MAX_ELEMENTS = 1 << 19
"""Larger tensors are looked at in parts of this size, the next part in the next turn."""
MIN_TENSORS = 4
MAX_TENSORS = 64
MAX_POSITIONS = 512
SECONDS_PER_TENSOR = 60e-6
SECONDS_PER_ELEMENT = 0.6e-9
"""A first guess, corrected by what it really takes."""
MAX_NAMES = 32
ORDINARY_SECONDS = 30.0
STUCK_SECONDS = 10.0
HAD_TO_MOVE = 1.0
"""An expected update of so many units in the last place leaves no excuse."""
CONFIRMED = 3
"""Looks at what stayed although it had to move, before it waits for its turn as all others do."""
CONFIRM_AFTER = 20
"""So many steps later it is told again whether layers are still given nothing but zeros, as often as the above."""


class WeightUpdatesInspector(Inspector):
    name = "weight-updates"

    def __init__(self, probe, names, turns):
        super().__init__(probe)
        self._names = names
        self._turns = turns
        self._rotations = {}
        self._around = {}
        self._outcomes = {}
        self._price = RunningMean(1.0)  # what it takes, over what the two figures above say
        self._next_cost = 0.0
        self._covered_once = False
        self._new_stuck = self._new_underflow = False
        self._times = {}  # what had to move and stayed -> how often in a row
        self._told_stuck = set()
        self._moving_again = []
        self._confirm_at = None
        self._confirmations = CONFIRMED
        self._closures = Closures()
        self._ordinary = RateLimit(0, ORDINARY_SECONDS)
        self._alarm = RateLimit(3, STUCK_SECONDS)
        self._underflow = RateLimit(1, ORDINARY_SECONDS)

    def backward_begins(self, loss, first):
        self._closures.backward_begins()

    def step_over(self, optimizer_id):
        self._around.pop(optimizer_id, None)
        self._closures.step_over()

    def forked(self):
        kept, self._around = self._around, {}
        return kept

    def step_begins(self, optimizer, clock):
        self._around.pop(id(optimizer), None)  # a step inside a captured graph may not have ended for us
        self._closures.step_begins(optimizer)
        if not self._turns.allows(self.name, self._next_cost):
            return
        if any(base.__name__ == "LBFGS" for base in type(optimizer).__mro__):
            self.probe.see(self.name, "not seen: an LBFGS step has many gradients")
            return
        began = time.perf_counter()
        with self._turns.spending(self.name), self.probe.torch.no_grad():
            chosen = self._choose(optimizer)
        if chosen.around or chosen.without:
            chosen.seconds = time.perf_counter() - began
            self._around[id(optimizer)] = chosen

    def step_ended(self, optimizer, clock):
        chosen = self._around.pop(id(optimizer), None)
        backwards = self._closures.step_ended()
        around = chosen is not None and chosen.around
        if chosen is not None and not backwards:
            for position, reference in chosen.without:
                parameter = reference()
                if parameter is not None and parameter.grad is None:
                    self._outcomes[(id(optimizer), position)] = Outcome(parameter, gradient=False)
        if around:
            began = time.perf_counter()
            with self._turns.spending(self.name), self.probe.torch.no_grad():
                self._compare(optimizer, around, backwards)
            actual = chosen.seconds + time.perf_counter() - began
            self._price.add(actual / chosen.modelled)
        if clock and self._outcomes and (around or self.probe.step & 63 == 0):
            self._tell_if_due()

    def ends(self):
        if self._outcomes:
            self._tell()

    def _rotation(self, optimizer_id):
        rotation = self._rotations.get(optimizer_id)
        if rotation is None:
            self._forget_those_gone()
            rotation = self._rotations[optimizer_id] = Rotation()
        return rotation

    def _forget_those_gone(self):
        """A training that makes optimizer after optimizer must not fill the memory with what was seen of them."""
        living = {id(optimizer) for optimizer in self.probe.optimizers}
        for kept in (self._rotations, self._around):
            for gone in [key for key in kept if key not in living]:
                del kept[gone]
        for kept in (self._times, self._outcomes):
            for gone in [key for key in kept if key[0] not in living]:
                del kept[gone]
        self._told_stuck = {part for part in self._told_stuck if part[0] in living}
        self._closures.keep_only(living)

    def _choose(self, optimizer):
        """What is looked at around this step."""
        rotation = self._rotation(id(optimizer))
        chosen = Chosen()
        by_closure = self._closures.has(optimizer)
        held_bytes = 0
        for position, suspected in rotation.positions(optimizer):
            group = optimizer.param_groups[position[0]]
            parameter = group["params"][position[1]]
            if not self._is_checkable(group, parameter):
                rotation.passed(position)
                continue
            if parameter.grad is None and not by_closure:
                chosen.without.append((position, weakref.ref(parameter)))
                rotation.passed(position)
                continue
            rows = by_rows(self.probe.torch, local(parameter))
            start, stop = rotation.span(position, rows)
            elements = max(1, rows.numel() // rows.shape[0]) * (stop - start)
            cost = (SECONDS_PER_TENSOR + SECONDS_PER_ELEMENT * elements) * (3 if suspected else 1)
            full = len(chosen.around) >= MAX_TENSORS or held_bytes > MAX_BYTES
            few = len(chosen.around) < MIN_TENSORS
            if full or not (few or self._turns.allows(self.name, (chosen.modelled + cost) * self._price.value)):
                if suspected:
                    rotation.suspect(position, (start, stop))
                break
            rotation.passed(position)
            around = Around(self.probe.torch, optimizer, parameter, slice(start, stop), with_ulps=suspected)
            if not by_closure:
                around.read_gradient(parameter.grad)
            chosen.around.append((position, weakref.ref(parameter), suspected, (start, stop), around))
            self._next_cost = MIN_TENSORS * cost * self._price.value
            chosen.modelled += cost
            held_bytes += around.bytes()
        return chosen

    def _is_checkable(self, group, parameter):
        torch = self.probe.torch
        if not parameter.requires_grad or parameter.numel() == 0 or is_zero(group.get("lr")):
            return False
        known = bits_type(torch, parameter.dtype) is not None or parameter.dtype in (torch.complex64, torch.complex128)
        sparse = parameter.grad is not None and parameter.grad.layout != torch.strided
        return known and local(parameter).numel() > 0 and not (sparse and parameter.shape[0] == 1)

    def _compare(self, optimizer, around, backwards):
        if backwards > 1:  # no single gradient made this step
            return
        by_device = {}
        for item in around:
            parameter = item[1]()
            if parameter is None or not _exists(optimizer, item[0]):
                continue
            if backwards and parameter.grad is None:
                continue
            if backwards:
                item[4].read_gradient(parameter.grad)
            if item[4].has_gradient():
                by_device.setdefault(parameter.device, []).append((parameter, item))
        known = kind_of(optimizer) is not None
        for pairs in by_device.values():
            items = [(optimizer.param_groups[item[0][0]], parameter, item) for parameter, item in pairs]
            rate = None
            if not known and any(suspected for _, _, (_, _, suspected, _, _) in items):
                rates = [item[4].rate(group, parameter) for group, parameter, item in items]
                rate = self.probe.torch.stack(rates).amin()
            numbers = [
                number
                for group, parameter, item in items
                for number in item[4].numbers(optimizer, group, parameter, rate)
            ]
            numbers = self.probe.torch.stack(numbers)
            told = [(*item[:4], item[4].rows) for _, item in pairs]
            self.probe.scalars.later(numbers, functools.partial(self._learn, id(optimizer), known, told))

    def _learn(self, optimizer_id, known, told, values):
        if len(values) != NUMBERS * len(told):
            return
        self.probe.see(self.name)
        rotation = self._rotation(optimizer_id)
        for index, (position, reference, suspected, span, rows) in enumerate(told):
            parameter = reference()
            if parameter is None:
                continue
            with_gradient, stuck, changed, state_moved, ulps = values[NUMBERS * index : NUMBERS * (index + 1)]
            if stuck and not suspected:
                rotation.suspect(position, span)
                continue
            outcome = Outcome(parameter, zero=not with_gradient, moved=changed != 0, state_moved=state_moved)
            part = (optimizer_id, position, span[0])
            if stuck:
                times = self._stayed(part, ulps)
                if 0 < times < CONFIRMED:
                    rotation.suspect(position, span)
                outcome.stuck = {
                    "rows": rows,
                    "with_gradient": int(with_gradient),
                    "stuck": int(stuck),
                    "update_ulps": None if ulps == UNKNOWN else float("%.4g" % ulps),
                    "state_moved": None if state_moved == UNKNOWN else bool(state_moved),
                    "times": max(1, times),
                    "by_others": not known,
                }
                outcome.part = part
            else:
                self._moved(part, outcome)
            before = self._outcomes.get((optimizer_id, position))
            # What is stuck is told before it is forgotten.
            if outcome.stuck or before is None or not before.stuck or before.told:
                self._outcomes[(optimizer_id, position)] = outcome

    def _stayed(self, part, ulps):
        """How often in a row by now it had to move and stayed; 0 where it had an excuse, or none is known."""
        if 0 <= ulps < HAD_TO_MOVE:
            self._new_underflow = True
            self._times.pop(part, None)
            return 0
        self._new_stuck = True
        if ulps == UNKNOWN:
            return 0
        self._times[part] = self._times.get(part, 0) + 1
        return self._times[part]

    def _moved(self, part, outcome):
        if outcome.zero:
            return
        self._times.pop(part, None)
        if part in self._told_stuck:
            self._told_stuck.discard(part)
            if not any(other[:2] == part[:2] for other in self._told_stuck):
                self._moving_again.append(outcome)

    def _tell_if_due(self):
        if not self._covered_once and len(self._outcomes) >= self._held():
            self._covered_once = True
            self._tell()
        elif (
            (self._new_stuck and self._alarm.due())
            or (self._new_underflow and self._underflow.due())
            or (self._confirm_at is not None and self.probe.step >= self._confirm_at)
        ):
            self._tell()
        elif self._ordinary.due():
            self._covered_once = True  # as far as it can be: some groups may have a learning rate of zero
            self._tell()

    def _held(self):
        return sum(len(trainable(optimizer)) for optimizer in self.probe.optimizers)

    def _tell(self):
        outcomes = [outcome for outcome in self._outcomes.values() if outcome.parameter is not None]
        moving_again = [outcome for outcome in self._moving_again if outcome.parameter is not None]
        self._new_stuck = self._new_underflow = False
        self._moving_again = []
        if self._covered_once:
            self._outcomes.clear()
        name = self._names.of
        # Those without an excuse first: there may be more than can be told.
        stuck = sorted((outcome for outcome in outcomes if outcome.stuck), key=lambda o: -(o.stuck["update_ulps"] or 0))
        for outcome in stuck[:MAX_NAMES]:
            outcome.told = True
            self._told_stuck.add(outcome.part)
        zero_input = self._with_zero_input(outcomes) if any(outcome.zero for outcome in outcomes) else []
        self._confirm_at = None
        if zero_input and self._confirmations:
            self._confirmations -= 1
            self._confirm_at = self.probe.step + CONFIRM_AFTER
        self.probe.emit(
            "weight-updates",
            step=self.probe.step,
            checked=len(outcomes),
            of=self._held(),
            moved=sum(outcome.moved for outcome in outcomes),
            state_moved=sum(outcome.state_moved == 1 for outcome in outcomes),
            no_gradient=[name(o.parameter) for o in outcomes if not o.gradient][:MAX_NAMES],
            zero_gradient=[name(o.parameter) for o in outcomes if o.zero][:MAX_NAMES],
            zero_input=zero_input[:MAX_NAMES],
            stuck=[dict(o.stuck, name=name(o.parameter)) for o in stuck[:MAX_NAMES]],
            moving_again=[name(o.parameter) for o in moving_again[:MAX_NAMES]],
        )

    def _with_zero_input(self, outcomes):
        """Weights without any gradient beside a bias that has one: what the layer is given must be zero throughout."""
        by_name = {self._names.of(outcome.parameter): outcome for outcome in outcomes if outcome.gradient}
        names = []
        for name, outcome in by_name.items():
            bias = by_name.get(name[: -len("weight")] + "bias") if name.endswith(".weight") else None
            if outcome.zero and bias is not None and not bias.zero and outcome.parameter.dim() > 1:
                names.append(name)
        return names


class Chosen(object):
    """What is looked at around one step."""

    def __init__(self):
        self.around = []
        self.without = []
        """Parameters that have no gradient before the step; the step itself may still give them one."""
        self.modelled = 0.0
        """What it should cost, before correction."""
        self.seconds = 0.0


class Outcome(object):
    """What was found of one parameter when it was last looked at."""

    __slots__ = ("_parameter", "gradient", "moved", "part", "state_moved", "stuck", "told", "zero")

    def __init__(self, parameter, gradient=True, zero=False, moved=False, state_moved=UNKNOWN):
        self._parameter = weakref.ref(parameter)
        self.gradient = gradient
        self.zero = zero
        self.moved = moved
        self.state_moved = state_moved
        self.stuck = self.part = None
        self.told = False

    @property
    def parameter(self):
        return self._parameter()


class Rotation(object):
    """Whose turn it is among an optimizer's parameters. A position is a group and a place in it."""

    def __init__(self):
        self._cursor = (0, 0)
        self._starts = {}
        self._suspects = deque()

    def suspect(self, position, span):
        if len(self._suspects) < MAX_TENSORS and (position, span) not in self._suspects:
            self._suspects.append((position, span))

    def positions(self, optimizer):
        """(position, whether it is a second look), first those to be looked at again; at most once around."""
        again = set()
        for position, span in list(self._suspects):
            self._suspects.popleft()
            if _exists(optimizer, position):
                self._starts[position] = span[0]
                again.add(position)
                yield position, True
        first = None
        for _ in range(MAX_POSITIONS):
            position = self._next_existing(optimizer)
            if position is None or position == first:
                return
            first = first or position
            if position in again:
                self.passed(position)
            else:
                yield position, False

    def passed(self, position):
        """It had its turn."""
        if position == self._cursor:
            self._cursor = (position[0], position[1] + 1)

    def span(self, position, rows):
        """The rows of a large tensor whose turn it is."""
        count = rows.shape[0]
        if rows.numel() <= MAX_ELEMENTS:
            return 0, count
        size = max(1, MAX_ELEMENTS * count // rows.numel())
        start = self._starts.get(position, 0)
        start = start if start < count else 0
        self._starts[position] = start + size
        return start, min(start + size, count)

    def _next_existing(self, optimizer):
        groups = optimizer.param_groups
        group, place = self._cursor
        for _ in range(len(groups) + 1):
            group = group if group < len(groups) else 0
            if place < len(groups[group]["params"]):
                self._cursor = (group, place)
                return self._cursor
            group, place = group + 1, 0
        return None


def _exists(optimizer, position):
    groups = optimizer.param_groups
    return position[0] < len(groups) and position[1] < len(groups[position[0]]["params"])


def is_zero(lr):
    """A learning rate that is a tensor on a device is not read: its updates will be estimated as zero."""
    if getattr(lr, "is_cpu", True) is False:
        return False
    return lr is not None and float(lr) == 0.0
