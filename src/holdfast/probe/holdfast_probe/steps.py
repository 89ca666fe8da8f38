"""Step counting: which calls of `Optimizer.step` are the run's steps.

The first optimizer to step is the primary one; steps of other optimizers are counted separately. Of nested calls, only
the outermost counts. Steps that run inside a backward count as one step for that backward. If no optimizer steps,
backwards are counted instead.
"""

import sys
import weakref
from threading import get_ident
from time import monotonic, time

from .dynamo import calls_hooks, hooked_classes
from .param_names import all_of_type, parameters_of
from .step_log import Record, StepLog
from .step_nesting import StepNesting

BACKWARDS_WITHOUT_STEP = 64
"""If an optimizer exists but no step is seen (it may be compiled into a graph), backwards are the steps after this many
of them. If an optimizer has stepped before, this holds only if its weights changed with each backward: an evaluation
may compute gradients too."""
CHECK_HOOKS_AFTER = 8
ALONE_AFTER = 64
"""After this many steps by the primary optimizer alone, it counts as the only one until another steps again."""
HANDOVER_STEPS = 100
"""After this many steps of another optimizer without one by the primary optimizer, the other becomes the primary one.
"""
DROPPED = "this torch drops optimizer hooks at the first torch.compile; backwards are counted"
NOT_COUNTED = "backwards without an optimizer step (evaluation, or a step inside a graph) are not counted"
UPDATES = "weight updates"
NO_UPDATE = "in %d backwards the optimizer never stepped, and its weights did not change"
SAMPLED_VALUES = 256
MAX_RATES = 8
MAX_OPTIMIZERS = 64
"""Above this number, deleted optimizers are removed from the table."""


class _OptimizerEntry(object):
    __slots__ = ("name", "ref", "steps_since_primary")

    def __init__(self, optimizer, name):
        self.ref = weakref.ref(optimizer)
        self.name = name
        self.steps_since_primary = 0


class Steps(object):
    def __init__(self, probe):
        self.probe = probe
        self.record = Record()
        """The current step."""
        self.recorder = StepLog(probe.emit, probe.emit_all, self.rates)
        self.source = "none"
        self.entered = 0
        """Number of calls of any optimizer's step, to detect steps that a gradient scaler skips."""
        self.running = StepNesting()
        self._entries = {}
        self.primary_reference = None
        """Weak reference to the primary optimizer."""
        self._other_stepped_at = None
        """The step after which another optimizer last stepped."""
        self._inside_backward = False
        self._backwards = 0
        """Outermost backwards since the last step."""
        self._max_backwards = 0
        self.evaluates = False
        """Whether too many backwards ran without a step: the next backward's loss must not be mixed with theirs."""
        self._weight = None
        """A weight of the primary optimizer, while backwards run without a step: its version, and how often it changed.
        """
        self._idle_weight = None
        """A weight of an optimizer that exists but does not step, and its values when that was noticed."""
        self._closures = False
        """Whether a backward was ever seen inside a step."""
        self.ended_at = monotonic()
        self._graph_task = getattr(probe.torch._C, "_current_graph_task_id", lambda: -1)

    # --- which optimizer steps -----------------------------------------------------------------------------------

    def primary(self):
        return None if self.primary_reference is None else self.primary_reference()

    def is_plain(self):
        """Return True if one optimizer now makes all of the run's steps, with no nested steps and no closures."""
        alone = self._other_stepped_at is None or self.probe.step - self._other_stepped_at > ALONE_AFTER
        return alone and self.source == "optimizer" and not self.running.nested and not self._closures

    def optimizers(self):
        optimizers = (entry.ref() for entry in list(self._entries.values()))
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def names(self):
        return [entry.name for entry in list(self._entries.values())]

    def rates(self):
        """Return the primary optimizer's learning rates, without reading from a device."""
        optimizer = self.primary() or next(iter(self.optimizers()), None)
        if optimizer is None:
            return ()
        rates = []
        for group in optimizer.param_groups[:MAX_RATES]:
            rate = group.get("lr")
            if isinstance(rate, (float, int)):
                rates.append(rate)
            elif isinstance(rate, self.probe.torch.Tensor) and rate.is_cpu:
                rates.append(rate.item())
        return rates

    def _get_entry(self, optimizer):
        entry = self._entries.get(id(optimizer))
        if entry is None or entry.ref() is not optimizer:
            if len(self._entries) >= MAX_OPTIMIZERS:
                self._entries = {key: entry for key, entry in self._entries.items() if entry.ref() is not None}
            name = type(optimizer).__name__
            same = sum(1 for other in self._entries.values() if other.name.split("#")[0] == name)
            entry = _OptimizerEntry(optimizer, name if not same else "%s#%d" % (name, same + 1))
            self._entries[id(optimizer)] = entry
        return entry

    def _is_primary(self, optimizer):
        primary = None if self.primary_reference is None else self.primary_reference()
        if primary is optimizer:
            if self.source != "optimizer":
                self._change_source("optimizer")
            return True
        entry = self._get_entry(optimizer)
        entry.steps_since_primary += 1
        if primary is not None and entry.steps_since_primary <= HANDOVER_STEPS:
            return False
        if self.primary_reference is not None:
            what = "another optimizer's steps are the run's steps from here on"
            self.probe.note(what, entry.name, code="optimizer-handover")
        self.primary_reference = entry.ref
        self._change_source("optimizer")
        self.probe.see("learning rates")
        return True

    def _change_source(self, source, remark=""):
        if source != self.source:
            self.source = source
            (self.probe.miss if remark is DROPPED else self.probe.see)("steps", remark)

    # --- one step ------------------------------------------------------------------------------------------------

    def begin_step(self, optimizer, frame):
        """Handle the start of a step; `frame` is the frame of the step itself. Return True if the inspectors saw it
        begin. Then `release` must be called when the step ends, whether it returns or raises.
        """
        probe = self.probe
        if not probe.awake and not probe.claim("step"):
            return False
        began = monotonic()
        try:
            self.entered += 1
            if self._graph_task() != -1:
                self._inside_backward = True
                self._get_entry(optimizer)
                self._other_stepped_at = probe.step
            elif self.running.begin(frame) and probe.watching and probe.inspectors:
                primary = self.primary()
                probe.budget.base += monotonic() - began
                probe.inspect("step_begins", optimizer, primary is None or primary is optimizer)
                began = monotonic()
                return True
        except Exception as error:
            probe.failed("the start of a step", error)
        finally:
            probe.budget.base += monotonic() - began
        return False

    def end_step(self, optimizer, frame):
        probe = self.probe
        fast_path = probe.fast_path
        if not probe.awake:
            return
        began = monotonic()
        try:
            begun, fast_path.begun = fast_path.begun, False
            if not self.running.end(frame) and not begun:
                return
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is not None and self._was_skipped(optimizer, found_inf):
                self.skip(optimizer)
                return
            is_primary = self._is_primary(optimizer)
            if is_primary:
                self._count_step(began)
            else:
                self._count_other(self._get_entry(optimizer))
            if probe.inspectors:
                probe.budget.base += monotonic() - began
                probe.inspect("step_ended", optimizer, is_primary)
                began = monotonic()
            if is_primary:
                self._after_step()
        except Exception as error:
            probe.failed("the end of a step", error)
        finally:
            probe.budget.base += monotonic() - began

    def release(self, optimizer_id):
        """Tell the inspectors that a step has returned or raised. It may run at any moment, so it only drops references."""
        for inspector in self.probe.inspectors:
            inspector.step_over(optimizer_id)

    def is_inside_step(self):
        """Return True if a step is running in this thread, as when its closure calls backward."""
        inside = self.running.is_above(sys._getframe(1))
        self._closures = self._closures or inside
        return inside

    def count_fast_step(self, ended_at):
        """Count a step of the primary optimizer that took the fast path and ended at `ended_at`."""
        self.entered += 1
        self.ended_at = ended_at
        self._backwards = 0

    def skip(self, optimizer):
        """Record that a gradient scaler kept this optimizer from stepping."""
        self.record.discard_losses()
        self._backwards = 0
        self.probe.see("skipped steps")
        self.probe.emit("skipped", step=self.probe.step, optimizer=self._get_entry(optimizer).name)

    def _was_skipped(self, optimizer, found_inf):
        """Return True if a fused optimizer skipped this step internally because of non-finite gradients."""
        if found_inf.is_cpu:
            return found_inf.item() != 0
        step, entry = self.probe.step, self._get_entry(optimizer)

        def on_values(values):
            if any(values):
                self.probe.note(
                    "a fused optimizer skips on the device: its skipped steps are counted as steps", entry.name
                )
                self.probe.emit("skipped", step=step, optimizer=entry.name)

        self.probe.scalars.later(found_inf, on_values)
        return False

    def _count_other(self, entry):
        self._other_stepped_at = self.probe.step
        record = self.record
        if record.other_steps is None:
            record.other_steps = {}
        record.other_steps[entry.name] = record.other_steps.get(entry.name, 0) + 1
        if record.loss_count:
            if record.other_losses is None:
                record.other_losses = {}
            record.other_losses[entry.name] = record.loss
        record.discard_losses()
        self._backwards = 0

    def _count_step(self, now):
        """Count a finished step of the primary optimizer. The heartbeat comes first, so that it is always exact."""
        probe = self.probe
        probe.step = number = probe.step + 1
        if probe.heart is not None:
            pulse = (now, probe.last_loss, probe.losses.total, probe.loaders.fetches)
            probe.heart.step(number, time(), pulse, probe.phase_now)
        if probe.fast_path.has_pending():
            probe.fast_path.leave()
        probe.scalars.thread = get_ident()
        if probe.loaders.evaluating:
            probe.loaders.training_resumed(now)
        if probe.phase_now != "training":
            probe.phase("training")
        record, self.record = self.record, Record()
        record.number = number
        seconds = now - self.ended_at - probe.pause_seconds
        record.seconds = seconds if seconds > 0.0 else 0.0
        self.ended_at = now
        if self._backwards > self._max_backwards and self.source == "optimizer":
            self._max_backwards = self._backwards
        self._backwards = 0
        self._weight = None
        self.evaluates = False
        probe.pause_seconds = 0.0
        if self.recorder.writes_each:
            record.lr = self.rates()
        if record.other_steps is not None:
            for entry in self._entries.values():
                entry.steps_since_primary = 0
        self.recorder.add(record, now)
        if probe.scaler.scaling:
            probe.scaler.reset()
        fast_path = probe.fast_path
        probe.budget.step(record.seconds, fast_path.steps, fast_path.seconds)
        fast_path.steps, fast_path.seconds = 0, 0.0

    def _after_step(self):
        probe, now = self.probe, self.ended_at
        if probe.schedules.has_new:
            probe.schedules.emit_new()
        if now >= probe.due_at:
            probe.periodic(now)
        if now >= probe.supervisor_watch.next_at:
            probe.supervisor_watch.check(now)
        probe.fast_path.decide()

    # --- when no optimizer steps ---------------------------------------------------------------------------------

    def backward_ended(self):
        """Handle the end of an outermost backward, which may count as a step."""
        if self._inside_backward:
            self._inside_backward = False
            if self.primary() is None:
                self._change_source("optimizer in backward")
                self.probe.see("learning rates")
                self._count_step(monotonic())
                self._after_step()
            return
        if self.source == "optimizer in backward" or (self.running.by_thread and self.is_inside_step()):
            return
        self._backwards += 1
        undecided = self.primary_reference is None or self._backwards >= CHECK_HOOKS_AFTER
        if self.source == "backward" or (undecided and self._backwards_are_steps()):
            self._count_step(monotonic())
            self._after_step()

    def _backwards_are_steps(self):
        """Decide whether backwards count as steps, because no step was seen. Either there is no optimizer, it does not
        step, or its hooks were dropped.
        """
        count = self._backwards
        optimizer_class = self.probe.torch.optim.Optimizer
        if self.primary_reference is None and count == 1 and not hooked_classes(optimizer_class):
            self._change_source("backward", "backwards are counted, because there is no optimizer")
            return True
        if count < CHECK_HOOKS_AFTER:
            return False
        if self.primary_reference is not None:
            self._track_weight()
        if count & (count - 1):
            return False
        primary = self.primary()
        kinds = hooked_classes(optimizer_class)
        if primary is not None:
            kinds = [kind for kind in kinds if isinstance(primary, kind)]
        if any(not calls_hooks(optimizer_class, kind) for kind in kinds):
            self._change_source("backward", DROPPED)
            return True
        if count < max(BACKWARDS_WITHOUT_STEP, 8 * self._max_backwards):
            return False
        if self.primary_reference is not None and not self._weight_changes_with_backwards():
            self.evaluates = True
            self.probe.see("steps", NOT_COUNTED)
            return False
        if self.primary_reference is None:
            self._idle_weight = self._find_any_weight()
        self.probe.step += count - 1
        self._change_source("backward", "backwards are counted, because no optimizer was seen to step")
        return True

    def _find_any_weight(self):
        weights = parameters_of(*all_of_type(self.probe.torch.optim.Optimizer))
        weight = next((weight for weight in weights if weight.grad is not None and weight.numel()), None)
        return None if weight is None else (weakref.ref(weight), _sample_values(weight))

    def _track_weight(self):
        """Count how often a weight changes between backwards without a step. Reading its version costs nothing."""
        if self._weight is None:
            primary = self.primary()
            weights = () if primary is None else parameters_of(primary)
            weight = next((weight for weight in weights if weight.grad is not None), None)
            self._weight = None if weight is None else [weakref.ref(weight), weight._version, 0, 0]
            return
        weight = self._weight[0]()
        if weight is not None:
            self._weight[3] += 1
            if weight._version != self._weight[1]:
                self._weight[1] = weight._version
                self._weight[2] += 1

    def _weight_changes_with_backwards(self):
        """Return True if every backward is a step: it runs inside a compiled graph, which calls no hooks."""
        return self._weight is not None and self._weight[3] > 0 and self._weight[2] == self._weight[3]

    # --- life cycle ----------------------------------------------------------------------------------------------

    def end(self):
        self.recorder.close(monotonic())
        weight = None if self._idle_weight is None or self.primary_reference is not None else self._idle_weight[0]()
        if weight is not None and _sample_values(weight) == self._idle_weight[1]:
            self.probe.miss(UPDATES, NO_UPDATE % self.probe.step)


def _sample_values(weight):
    """Return the first values of a weight. Any update changes them, even one that bypasses autograd."""
    return weight.detach().reshape(-1)[:SAMPLED_VALUES].double().cpu().tolist()
