"""Counts steps: which of all the calls of `Optimizer.step` are the run's steps.

The first optimizer to step is the clock; the steps of others are counted beside it. Of nested calls only the outermost
counts. Steps that run inside a backward count as one for that backward. Where no optimizer steps, backwards count.
"""

import sys
import weakref
from threading import get_ident
from time import monotonic, time

from .hook_support import calls_hooks, hooked_classes
from .param_names import all_of_type
from .step_log import Record, StepLog
from .step_nesting import StepNesting

BACKWARDS_WITHOUT_STEP = 64
"""An optimizer exists but no step is seen (it may be compiled into a graph): after this many backwards they are the steps.
Where an optimizer has stepped, only if its weights changed with each of them: an evaluation may take gradients too."""
CHECK_HOOKS_AFTER = 8
ALONE_AFTER = 64
"""So many steps without one of another optimizer: the clock's are all there are, until another steps again."""
HANDOVER_STEPS = 100
"""So many steps of another optimizer without one of the clock's: the training has moved on to that one."""
DROPPED = "not seen: this torch drops optimizer hooks at the first torch.compile; backwards are counted"
NOT_COUNTED = "seen: backwards without an optimizer's step (evaluation, or a step inside a graph) are not counted"
UPDATES = "weight updates"
NO_UPDATE = "not seen: in %d backwards the optimizer never stepped, and its weights did not change"
BITS_OF_A_WEIGHT = 256
MAX_RATES = 8
MAX_OPTIMIZERS = 64
"""Beyond these, optimizers that are gone are forgotten."""


class _Seen(object):
    __slots__ = ("name", "ref", "since_clock")

    def __init__(self, optimizer, name):
        self.ref = weakref.ref(optimizer)
        self.name = name
        self.since_clock = 0


class Steps(object):
    def __init__(self, probe):
        self.probe = probe
        self.record = Record()
        """The step that is being made."""
        self.recorder = StepLog(probe.emit, probe.emit_all, self.rates)
        self.source = "none"
        self.entered = 0
        """Calls of any optimizer's step, so that a scaler's skipping shows."""
        self.running = StepNesting()
        self._seen = {}
        self._clock = None
        self._beside_at = None
        """The step after which another optimizer stepped last."""
        self._inside_backward = False
        self._backwards = 0
        """Outermost backwards since the last step."""
        self._most_backwards = 0
        self.evaluates = False
        """Too many backwards have come without a step: the next one's loss is not to be mixed with theirs."""
        self._weight = None
        """A weight of the clock's, while backwards come without a step: its version, and how often that changed."""
        self._idle = None
        """A weight of an optimizer that exists and does not step, and what it was when that was noticed."""
        self._closures = False
        """Whether a backward was ever seen inside a step."""
        self.ended_at = monotonic()
        self._graph_task = getattr(probe.torch._C, "_current_graph_task_id", _no_graph_task)

    # --- who steps -----------------------------------------------------------------------------------------------

    def clock(self):
        return None if self._clock is None else self._clock()

    def clock_reference(self):
        return self._clock

    def is_plain(self):
        """One optimizer, whose steps are the run's, with nothing nested in it and nothing that calls it. Others may have been before."""
        alone = self._beside_at is None or self.probe.step - self._beside_at > ALONE_AFTER
        return alone and self.source == "optimizer" and not self.running.nested and not self._closures

    def optimizers(self):
        living = (seen.ref() for seen in list(self._seen.values()))
        return [optimizer for optimizer in living if optimizer is not None]

    def names(self):
        return [seen.name for seen in list(self._seen.values())]

    def rates(self):
        """The clock's learning rates, without reading from a device."""
        optimizer = self.clock() or next(iter(self.optimizers()), None)
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

    def _meet(self, optimizer):
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.ref() is not optimizer:
            if len(self._seen) >= MAX_OPTIMIZERS:
                self._seen = {key: seen for key, seen in self._seen.items() if seen.ref() is not None}
            name = type(optimizer).__name__
            same = sum(1 for other in self._seen.values() if other.name.split("#")[0] == name)
            seen = _Seen(optimizer, name if not same else "%s#%d" % (name, same + 1))
            self._seen[id(optimizer)] = seen
        return seen

    def _is_clock(self, optimizer):
        clock = None if self._clock is None else self._clock()
        if clock is optimizer:
            if self.source != "optimizer":
                self._change_source("optimizer")
            return True
        seen = self._meet(optimizer)
        seen.since_clock += 1
        if clock is not None and seen.since_clock <= HANDOVER_STEPS:
            return False
        if self._clock is not None:
            self.probe.note("another optimizer's steps are the run's steps from here on", seen.name)
        self._clock = seen.ref
        self._change_source("optimizer")
        self.probe.see("learning rates")
        return True

    def _change_source(self, source, text="seen"):
        if source != self.source:
            self.source = source
            self.probe.see("steps", text)

    # --- one step ------------------------------------------------------------------------------------------------

    def begins(self, optimizer, frame):
        """`frame` is that of the step itself. True when the looks saw it begin: then its end, however it comes, must be
        told to `over`.
        """
        probe = self.probe
        if not probe.awake and not probe.claim("step"):
            return False
        began = monotonic()
        try:
            self.entered += 1
            if self._graph_task() != -1:
                self._inside_backward = True
                self._meet(optimizer)
                self._beside_at = probe.step
            elif self.running.begins(frame) and probe.watching and probe.inspectors:
                clock = self.clock()
                probe.budget.base += monotonic() - began
                probe.inspect("step_begins", optimizer, clock is None or clock is optimizer)
                began = monotonic()
                return True
        except Exception as error:
            probe.failed("the beginning of a step", error)
        finally:
            probe.budget.base += monotonic() - began
        return False

    def ended(self, optimizer, frame):
        probe = self.probe
        quick = probe.quick
        if not probe.awake:
            return
        began = monotonic()
        try:
            begun, quick.begun = quick.begun, False
            if not self.running.ended(frame) and not begun:
                return
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is not None and self._was_skipped(optimizer, found_inf):
                self.skipped(optimizer)
                return
            clock = self._is_clock(optimizer)
            if clock:
                self._tick(began)
            else:
                self._count_other(self._meet(optimizer))
            if probe.inspectors:
                probe.budget.base += monotonic() - began
                probe.inspect("step_ended", optimizer, clock)
                began = monotonic()
            if clock:
                self._after_tick()
        except Exception as error:
            probe.failed("the end of a step", error)
        finally:
            probe.budget.base += monotonic() - began

    def over(self, optimizer_id):
        """A step that the looks saw begin has returned or raised. May come at any moment: it only lets go."""
        for inspector in self.probe.inspectors:
            inspector.step_over(optimizer_id)

    def within(self):
        """Whether a step runs right now in this thread, as when its closure calls backward."""
        within = self.running.is_above(sys._getframe(1))
        self._closures = self._closures or within
        return within

    def made_quickly(self, ended_at):
        """A step of the clock went the short way, and ended then."""
        self.entered += 1
        self.ended_at = ended_at
        self._backwards = 0

    def skipped(self, optimizer):
        """A gradient scaler kept this optimizer from stepping."""
        self.record.forget_losses()
        self._backwards = 0
        self.probe.see("skipped steps")
        self.probe.emit("skipped", step=self.probe.step, optimizer=self._meet(optimizer).name)

    def _was_skipped(self, optimizer, found_inf):
        """A fused optimizer gets told of non-finite gradients and skips inside."""
        if found_inf.is_cpu:
            return found_inf.item() != 0
        step, seen = self.probe.step, self._meet(optimizer)

        def arrived(values):
            if any(values):
                self.probe.note(
                    "a fused optimizer skips on the device: its skipped steps are counted as steps", seen.name
                )
                self.probe.emit("skipped", step=step, optimizer=seen.name)

        self.probe.scalars.later(found_inf, arrived)
        return False

    def _count_other(self, seen):
        self._beside_at = self.probe.step
        record = self.record
        if record.other_steps is None:
            record.other_steps = {}
        record.other_steps[seen.name] = record.other_steps.get(seen.name, 0) + 1
        if record.loss_count:
            if record.other_losses is None:
                record.other_losses = {}
            record.other_losses[seen.name] = record.loss
        record.forget_losses()
        self._backwards = 0

    def _tick(self, now):
        """A step of the clock is done. The heartbeat comes first: it must be exact whatever happens next."""
        probe = self.probe
        probe.step = number = probe.step + 1
        if probe.heart is not None:
            pulse = (now, probe.last_loss, probe.losses.total, probe.loaders.fetches)
            probe.heart.step(number, time(), pulse, probe.phase_now)
        if probe.quick.is_ahead():
            probe.quick.leave()
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
        if self._backwards > self._most_backwards and self.source == "optimizer":
            self._most_backwards = self._backwards
        self._backwards = 0
        self._weight = None
        self.evaluates = False
        probe.pause_seconds = 0.0
        if self.recorder.writes_each:
            record.lr = self.rates()
        if record.other_steps is not None:
            for seen in self._seen.values():
                seen.since_clock = 0
        self.recorder.add(record, now)
        if probe.scaler.scaling:
            probe.scaler.forget()
        quick = probe.quick
        probe.budget.step(record.seconds, quick.steps, quick.seconds)
        quick.steps, quick.seconds = 0, 0.0

    def _after_tick(self):
        probe, now = self.probe, self.ended_at
        if probe.schedules.unsaid:
            probe.schedules.say()
        if now >= probe.due_at:
            probe.periodic(now)
        if now >= probe.orphan.next_at:
            probe.orphan.check(now)
        probe.quick.decide()

    # --- where no optimizer steps --------------------------------------------------------------------------------

    def backward_ended(self):
        """An outermost backward is done; it may have been a step."""
        if self._inside_backward:
            self._inside_backward = False
            if self.clock() is None:
                self._change_source("optimizer in backward")
                self.probe.see("learning rates")
                self._tick(monotonic())
                self._after_tick()
            return
        if self.source == "optimizer in backward" or (self.running.by_thread and self.within()):
            return
        self._backwards += 1
        undecided = self._clock is None or self._backwards >= CHECK_HOOKS_AFTER
        if self.source == "backward" or (undecided and self._backwards_are_steps()):
            self._tick(monotonic())
            self._after_tick()

    def _backwards_are_steps(self):
        """Decided when no step has come: because there is no optimizer, it does not step, or its hooks are gone."""
        count = self._backwards
        optimizer_class = self.probe.torch.optim.Optimizer
        if self._clock is None and count == 1 and not hooked_classes(optimizer_class):
            self._change_source("backward", "seen: backwards are counted, because there is no optimizer")
            return True
        if count < CHECK_HOOKS_AFTER:
            return False
        if self._clock is not None:
            self._follow_weight()
        if count & (count - 1):
            return False
        clock = self.clock()
        kinds = hooked_classes(optimizer_class)
        if clock is not None:
            kinds = [kind for kind in kinds if isinstance(clock, kind)]
        if any(not calls_hooks(optimizer_class, kind) for kind in kinds):
            self._change_source("backward", DROPPED)
            return True
        if count < max(BACKWARDS_WITHOUT_STEP, 8 * self._most_backwards):
            return False
        if self._clock is not None and not self._weight_follows_backwards():
            self.evaluates = True
            self.probe.see("steps", NOT_COUNTED)
            return False
        if self._clock is None:
            self._idle = self._weight_of_some_optimizer()
        self.probe.step += count - 1
        self._change_source("backward", "seen: backwards are counted, because no optimizer is seen to step")
        return True

    def _weight_of_some_optimizer(self):
        for optimizer in all_of_type((self.probe.torch.optim.Optimizer,)):
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None and weight.numel():
                        return weakref.ref(weight), _first_bits(weight)
        return None

    def _follow_weight(self):
        """How often a weight changes from one backward to the next, although no step is seen. Its version says so, free."""
        if self._weight is None:
            clock = self.clock()
            groups = () if clock is None else clock.param_groups
            weight = next((p for group in groups for p in group["params"] if p.grad is not None), None)
            self._weight = None if weight is None else [weakref.ref(weight), weight._version, 0, 0]
            return
        weight = self._weight[0]()
        if weight is not None:
            self._weight[3] += 1
            if weight._version != self._weight[1]:
                self._weight[1] = weight._version
                self._weight[2] += 1

    def _weight_follows_backwards(self):
        """The step runs inside a compiled graph, where hooks are not called: then every backward is a step."""
        return self._weight is not None and self._weight[3] > 0 and self._weight[2] == self._weight[3]

    # --- life ----------------------------------------------------------------------------------------------------

    def claimed(self):
        self.ended_at = monotonic()

    def end(self):
        self.recorder.close(monotonic())
        weight = None if self._idle is None or self._clock is not None else self._idle[0]()
        if weight is not None and _first_bits(weight) == self._idle[1]:
            self.probe.see(UPDATES, NO_UPDATE % self.probe.step)


def _first_bits(weight):
    """Its first values: whoever updates it, also behind autograd's back, changes them."""
    return weight.detach().reshape(-1)[:BITS_OF_A_WEIGHT].double().cpu().tolist()


def _no_graph_task():
    return -1
