"""Checks row by row whether a non-zero gradient changed its weight, and whether the optimizer's state changed.

Rows of a few parameters are copied before a step and compared exactly after it. In the first steps the budget's initial
credit covers every parameter; after that they rotate. If rows of a tensor did not change, the tensor is checked again in the
next step, this time with the expected update. Only rows that did not change twice are reported. Rows that should have
changed but did not are checked a third and a fourth time.

A closure may compute the gradient inside the step. Then the gradient is read after the step.
"""

import functools
import time
import weakref
from collections import deque

from . import Inspector
from .closures import Closures
from .expected_update import optimizer_kind
from .rate_limit import RateLimit, RunningMedian
from .row_compare import NUMBERS, UNKNOWN, StepComparison
from .tensors import as_rows, bits_type, to_local, trainable_parameters

MAX_BYTES = 16 << 20
"""The size of the copies kept during a step. With the temporaries of the comparison the total stays below 32 MB."""
MAX_ELEMENTS = 1 << 19
"""Larger tensors are checked in parts of this size, one part per turn."""
MIN_TENSORS = 4
MAX_TENSORS = 64
MAX_POSITIONS = 512
SECONDS_PER_TENSOR = 60e-6
SECONDS_PER_ELEMENT = 0.6e-9
"""A first estimate, corrected by the measured cost."""
MAX_NAMES = 32
ORDINARY_SECONDS = 30.0
STUCK_SECONDS = 10.0
MIN_ULPS_TO_MOVE = 1.0
"""A weight must change if its expected update is at least this many units in the last place (ulps)."""
MAX_CONFIRMATIONS = 3
"""Checks of a weight that should have changed but did not, before it waits for its regular turn again."""
CONFIRM_AFTER = 20
"""After this many steps, report again whether layers still receive only zeros. Repeated MAX_CONFIRMATIONS times."""


class WeightUpdatesInspector(Inspector):
    name = "weight-updates"

    def __init__(self, probe, names, fair_share):
        super().__init__(probe)
        self._names = names
        self._fair_share = fair_share
        self._rotations = {}
        self._pending = {}
        self._outcomes = {}
        self._cost_factor = RunningMedian(1.0)  # measured cost divided by the estimate from the two constants above
        self._expected_cost = 0.0
        self._all_checked = False
        self._has_new_stuck = self._has_new_underflow = False
        self._stuck_counts = {}  # part that should have changed but did not -> how often in a row
        self._reported_stuck = set()
        self._moving_again = []
        self._confirm_at = None
        self._confirmations = MAX_CONFIRMATIONS
        self._closures = Closures()
        self._regular_limit = RateLimit(0, ORDINARY_SECONDS)
        self._stuck_limit = RateLimit(3, STUCK_SECONDS)
        self._underflow_limit = RateLimit(1, ORDINARY_SECONDS)

    def backward_begins(self, loss, first):
        self._closures.backward_begins()

    def step_over(self, optimizer_id):
        self._pending.pop(optimizer_id, None)
        self._closures.step_over()

    def forked(self):
        kept, self._pending = self._pending, {}
        return kept

    def step_begins(self, optimizer, is_primary):
        self._pending.pop(id(optimizer), None)  # a step inside a captured graph may never report its end
        self._closures.step_begins(optimizer)
        if not self._fair_share.allows(self.name, self._expected_cost):
            return
        if any(base.__name__ == "LBFGS" for base in type(optimizer).__mro__):
            self.probe.miss(self.name, "an LBFGS step uses many gradients")
            return
        began = time.perf_counter()
        with self._fair_share.spending(self.name), self.probe.torch.no_grad():
            selection = self._choose_parameters(optimizer)
        if selection.comparisons or selection.without_gradient:
            selection.seconds = time.perf_counter() - began
            self._pending[id(optimizer)] = selection

    def step_ended(self, optimizer, is_primary):
        selection = self._pending.pop(id(optimizer), None) or Selection()
        backwards = self._closures.step_ended()
        if not backwards:
            for position, reference in selection.without_gradient:
                parameter = reference()
                if parameter is not None and parameter.grad is None:
                    self._outcomes[(id(optimizer), position)] = Outcome(parameter, gradient=False)
        if selection.comparisons:
            began = time.perf_counter()
            with self._fair_share.spending(self.name), self.probe.torch.no_grad():
                self._compare(optimizer, selection.comparisons, backwards)
            actual = selection.seconds + time.perf_counter() - began
            self._cost_factor.add(actual / selection.estimated_cost)
        if is_primary and self._outcomes and (selection.comparisons or self.probe.step & 63 == 0):
            self._report_if_due()

    def ends(self):
        if self._outcomes:
            self._report()

    def _rotation(self, optimizer_id):
        rotation = self._rotations.get(optimizer_id)
        if rotation is None:
            self._drop_dead_optimizers()
            rotation = self._rotations[optimizer_id] = Rotation()
        return rotation

    def _drop_dead_optimizers(self):
        """Drop the records of deleted optimizers, so that a training that keeps creating optimizers cannot fill the memory."""
        live_ids = {id(optimizer) for optimizer in self.probe.optimizers}
        for kept in (self._rotations, self._pending, self._stuck_counts, self._outcomes):
            for dead in [key for key in kept if (key[0] if isinstance(key, tuple) else key) not in live_ids]:
                del kept[dead]
        self._reported_stuck = {part for part in self._reported_stuck if part[0] in live_ids}
        self._closures.keep_only(live_ids)

    def _choose_parameters(self, optimizer):
        """Choose the parameters to check around this step."""
        rotation = self._rotation(id(optimizer))
        selection = Selection()
        uses_closure = self._closures.uses_closure(optimizer)
        copied_bytes = 0
        for position, suspected in rotation.positions(optimizer):
            group = optimizer.param_groups[position[0]]
            parameter = group["params"][position[1]]
            if not self._is_checkable(group, parameter):
                rotation.advance(position)
                continue
            if parameter.grad is None and not uses_closure:
                selection.without_gradient.append((position, weakref.ref(parameter)))
                rotation.advance(position)
                continue
            rows = as_rows(self.probe.torch, to_local(parameter))
            span = rotation.span(position, rows)
            elements = max(1, rows.numel() // rows.shape[0]) * (span[1] - span[0])
            cost = (SECONDS_PER_TENSOR + SECONDS_PER_ELEMENT * elements) * (3 if suspected else 1)
            if copied_bytes > MAX_BYTES or not self._has_room(selection, cost):
                if suspected:
                    rotation.suspect(position, span)
                break
            rotation.advance(position)
            comparison = StepComparison(self.probe.torch, optimizer, parameter, position, span, suspected=suspected)
            if not uses_closure:
                comparison.read_gradient(parameter.grad)
            selection.comparisons.append(comparison)
            self._expected_cost = MIN_TENSORS * cost * self._cost_factor.value
            selection.estimated_cost += cost
            copied_bytes += comparison.bytes()
        return selection

    def _has_room(self, selection, cost):
        """Return whether one more parameter may be checked, after the first few."""
        count = len(selection.comparisons)
        estimate = (selection.estimated_cost + cost) * self._cost_factor.value
        return count < MIN_TENSORS or (count < MAX_TENSORS and self._fair_share.allows(self.name, estimate))

    def _is_checkable(self, group, parameter):
        torch = self.probe.torch
        if not parameter.requires_grad or parameter.numel() == 0 or is_zero(group.get("lr")):
            return False
        is_complex = parameter.dtype in (torch.complex64, torch.complex128)
        is_known = is_complex or bits_type(torch, parameter.dtype) is not None
        sparse = parameter.grad is not None and parameter.grad.layout != torch.strided
        return is_known and to_local(parameter).numel() > 0 and not (sparse and parameter.shape[0] == 1)

    def _compare(self, optimizer, comparisons, backwards):
        if backwards > 1:  # more than one gradient went into this step
            return
        torch = self.probe.torch
        by_device = {}
        for comparison in comparisons:
            parameter, position = comparison.parameter(), comparison.position
            if parameter is None or not _position_exists(optimizer, position) or (backwards and parameter.grad is None):
                continue
            if backwards:
                comparison.read_gradient(parameter.grad)
            if comparison.has_gradient():
                group = optimizer.param_groups[position[0]]
                by_device.setdefault(parameter.device, []).append((comparison, group, parameter))
        is_known = optimizer_kind(optimizer) is not None
        for items in by_device.values():
            rate = None
            if not is_known and any(comparison.suspected for comparison, _, _ in items):
                rate = torch.stack([comparison.rate(group, parameter) for comparison, group, parameter in items]).amin()
            numbers = []
            for comparison, group, parameter in items:
                numbers += comparison.numbers(optimizer, group, parameter, rate)
            compared = [comparison for comparison, _, _ in items]
            handle = functools.partial(self._handle_numbers, id(optimizer), is_known, compared)
            self.probe.scalars.later(torch.stack(numbers), handle)

    def _handle_numbers(self, optimizer_id, is_known, compared, values):
        if len(values) != NUMBERS * len(compared):
            return
        self.probe.see(self.name)
        rotation = self._rotation(optimizer_id)
        for index, comparison in enumerate(compared):
            parameter, position, span = comparison.parameter(), comparison.position, comparison.span
            if parameter is None:
                continue
            with_gradient, stuck, changed, state_moved, ulps = values[NUMBERS * index : NUMBERS * (index + 1)]
            if stuck and not comparison.suspected:
                rotation.suspect(position, span)
                continue
            outcome = Outcome(parameter, zero=not with_gradient, moved=changed != 0, state_moved=state_moved)
            part = (optimizer_id, position, span[0])
            if stuck:
                times = self._count_stuck(part, ulps)
                if 0 < times < MAX_CONFIRMATIONS:
                    rotation.suspect(position, span)
                outcome.stuck = {
                    "rows": comparison.rows,
                    "with_gradient": int(with_gradient),
                    "stuck": int(stuck),
                    "update_ulps": None if ulps == UNKNOWN else float("%.4g" % ulps),
                    "state_moved": None if state_moved == UNKNOWN else bool(state_moved),
                    "times": max(1, times),
                    "by_others": not is_known,
                }
                outcome.part = part
            else:
                self._mark_moved(part, outcome)
            before = self._outcomes.get((optimizer_id, position))
            # A stuck result is reported before it is replaced.
            if outcome.stuck or before is None or not before.stuck or before.reported:
                self._outcomes[(optimizer_id, position)] = outcome

    def _count_stuck(self, part, ulps):
        """Return how often in a row this part did not change but should have (0 if that is not certain)."""
        if 0 <= ulps < MIN_ULPS_TO_MOVE:
            self._has_new_underflow = True
            self._stuck_counts.pop(part, None)
            return 0
        self._has_new_stuck = True
        if ulps == UNKNOWN:
            return 0
        self._stuck_counts[part] = self._stuck_counts.get(part, 0) + 1
        return self._stuck_counts[part]

    def _mark_moved(self, part, outcome):
        if outcome.zero:
            return
        self._stuck_counts.pop(part, None)
        if part in self._reported_stuck:
            self._reported_stuck.discard(part)
            if not any(other[:2] == part[:2] for other in self._reported_stuck):
                self._moving_again.append(outcome)

    def _report_if_due(self):
        if not self._all_checked and len(self._outcomes) >= self._count_trainable():
            self._all_checked = True
            self._report()
        elif (
            (self._has_new_stuck and self._stuck_limit.try_acquire())
            or (self._has_new_underflow and self._underflow_limit.try_acquire())
            or (self._confirm_at is not None and self.probe.step >= self._confirm_at)
        ):
            self._report()
        elif self._regular_limit.try_acquire():
            self._all_checked = True  # as far as possible: some groups may have a learning rate of zero
            self._report()

    def _count_trainable(self):
        return len(trainable_parameters(*self.probe.optimizers))

    def _report(self):
        outcomes = [outcome for outcome in self._outcomes.values() if outcome.parameter is not None]
        moving_again = [outcome for outcome in self._moving_again if outcome.parameter is not None]
        self._has_new_stuck = self._has_new_underflow = False
        self._moving_again = []
        if self._all_checked:
            self._outcomes.clear()
        name = self._names.of
        # The largest expected updates first: there may be more than MAX_NAMES.
        stuck = sorted((outcome for outcome in outcomes if outcome.stuck), key=lambda o: -(o.stuck["update_ulps"] or 0))
        for outcome in stuck[:MAX_NAMES]:
            outcome.reported = True
            self._reported_stuck.add(outcome.part)
        zero_input = self._find_zero_input(outcomes) if any(outcome.zero for outcome in outcomes) else []
        self._confirm_at = None
        if zero_input and self._confirmations:
            self._confirmations -= 1
            self._confirm_at = self.probe.step + CONFIRM_AFTER
        self.probe.emit(
            "weight-updates",
            step=self.probe.step,
            checked=len(outcomes),
            of=self._count_trainable(),
            moved=sum(outcome.moved for outcome in outcomes),
            state_moved=sum(outcome.state_moved == 1 for outcome in outcomes),
            no_gradient=[name(o.parameter) for o in outcomes if not o.gradient][:MAX_NAMES],
            zero_gradient=[name(o.parameter) for o in outcomes if o.zero][:MAX_NAMES],
            zero_input=zero_input[:MAX_NAMES],
            stuck=[dict(o.stuck, name=name(o.parameter)) for o in stuck[:MAX_NAMES]],
            moving_again=[name(o.parameter) for o in moving_again[:MAX_NAMES]],
        )

    def _find_zero_input(self, outcomes):
        """Return the weights with a zero gradient whose bias has a gradient: their layer's input must be all zero."""
        by_name = {self._names.of(outcome.parameter): outcome for outcome in outcomes if outcome.gradient}
        names = []
        for name, outcome in by_name.items():
            bias = by_name.get(name[: -len("weight")] + "bias") if name.endswith(".weight") else None
            if outcome.zero and bias is not None and not bias.zero and outcome.parameter.dim() > 1:
                names.append(name)
        return names


class Selection(object):
    """The parameters to check around one step."""

    def __init__(self):
        self.comparisons = []
        self.without_gradient = []
        """Parameters that have no gradient before the step. The step itself may still compute one."""
        self.estimated_cost = 0.0
        """In seconds, before correction."""
        self.seconds = 0.0


class Outcome(object):
    """The result of the last check of one parameter."""

    __slots__ = ("_parameter", "gradient", "moved", "part", "reported", "state_moved", "stuck", "zero")

    def __init__(self, parameter, gradient=True, zero=False, moved=False, state_moved=UNKNOWN):
        self._parameter = weakref.ref(parameter)
        self.gradient = gradient
        self.zero = zero
        self.moved = moved
        self.state_moved = state_moved
        self.stuck = self.part = None
        self.reported = False

    @property
    def parameter(self):
        return self._parameter()


class Rotation(object):
    """The order in which an optimizer's parameters are checked. A position is a group index and an index in the group."""

    def __init__(self):
        self._cursor = (0, 0)
        self._starts = {}
        self._suspects = deque()

    def suspect(self, position, span):
        if len(self._suspects) < MAX_TENSORS and (position, span) not in self._suspects:
            self._suspects.append((position, span))

    def positions(self, optimizer):
        """Yield (position, is_recheck), rechecks first, and each position at most once."""
        again = set()
        for position, span in list(self._suspects):
            self._suspects.popleft()
            if _position_exists(optimizer, position):
                self._starts[position] = span[0]
                again.add(position)
                yield position, True
        first = None
        for _ in range(MAX_POSITIONS):
            position = self._find_next(optimizer)
            if position is None or position == first:
                return
            first = first or position
            if position in again:
                self.advance(position)
            else:
                yield position, False

    def advance(self, position):
        """Move the cursor past this position."""
        if position == self._cursor:
            self._cursor = (position[0], position[1] + 1)

    def span(self, position, rows):
        """Return the (start, stop) rows of a large tensor to check next."""
        count = rows.shape[0]
        if rows.numel() <= MAX_ELEMENTS:
            return 0, count
        size = max(1, MAX_ELEMENTS * count // rows.numel())
        start = self._starts.get(position, 0)
        start = start if start < count else 0
        self._starts[position] = start + size
        return start, min(start + size, count)

    def _find_next(self, optimizer):
        groups = optimizer.param_groups
        group, index = self._cursor
        for _ in range(len(groups) + 1):
            group = group if group < len(groups) else 0
            if index < len(groups[group]["params"]):
                self._cursor = (group, index)
                return self._cursor
            group, index = group + 1, 0
        return None


def _position_exists(optimizer, position):
    groups = optimizer.param_groups
    return position[0] < len(groups) and position[1] < len(groups[position[0]]["params"])


def is_zero(lr):
    """Return whether a learning rate is zero. A tensor on a device is not read; its updates are estimated as zero."""
    if getattr(lr, "is_cpu", True) is False:
        return False
    return lr is not None and float(lr) == 0.0
