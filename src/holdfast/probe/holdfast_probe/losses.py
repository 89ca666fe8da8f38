"""Reads losses where they are made: at the entry of an outermost backward.

`Tensor.backward` calls `torch.autograd.backward`, so that one is the only door. A `torch.autograd.grad` counts as the
backward of a step only where parameters are asked for, no graph of the gradient is built (gradient penalties and inner
loops do that), and this process has never called a real backward.
"""

from threading import get_ident
from time import monotonic

GRAD_INPUTS_LOOKED_AT = 8


class Losses(object):
    def __init__(self, probe):
        self.probe = probe
        self.total = 0
        """Outermost backwards so far."""
        self._inside = set()
        """Threads that are in one."""
        self._from_grad = False
        """The losses of the step at hand come from `autograd.grad`."""
        self._backward_ever = False
        self._seen = False
        self._tensor = probe.torch.Tensor
        self._graph_task = getattr(probe.torch._C, "_current_graph_task_id", lambda: -1)

    # --- the doors -----------------------------------------------------------------------------------------------

    def backward_begins(self, args, kwargs):
        """True when this is an outermost backward, whose end is to be told."""
        if self._graph_task() != -1:
            return False
        return self._begins(args[0] if args else kwargs.get("tensors"), real=True)

    def grad_begins(self, args, kwargs):
        if self._backward_ever or self._graph_task() != -1:
            return False
        create_graph = args[4] if len(args) > 4 else kwargs.get("create_graph", False)
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs", ())
        inputs = tuple(inputs.values()) if isinstance(inputs, dict) else _as_tuple(inputs)
        parameter = self.probe.torch.nn.Parameter
        if create_graph or not any(isinstance(item, parameter) for item in inputs[:GRAD_INPUTS_LOOKED_AT]):
            return False
        return self._begins(args[0] if args else kwargs.get("outputs"), real=False)

    def ended(self, succeeded):
        """The backward that `backward_begins` or `grad_begins` said True for is over."""
        began = monotonic()
        probe = self.probe
        self._inside.discard(get_ident())
        try:
            if succeeded:
                probe.pulse(began)
                probe.steps.backward_ended()
        except Exception as error:
            probe.failed("the end of a backward", error)
        finally:
            probe.budget.base += monotonic() - began

    # --- reading -------------------------------------------------------------------------------------------------

    def _begins(self, losses, real):
        probe = self.probe
        thread = get_ident()
        if thread in self._inside or (not probe.awake and not probe.claim("backward")):
            return False
        began = monotonic()
        try:
            losses = (losses,) if type(losses) is self._tensor else _as_tuple(losses)
            if not losses or (type(losses[0]) is not self._tensor and self._is_stand_in(losses[0])):
                return False
            self._inside.add(thread)
            self.total += 1
            if probe.phase_now != "training":
                self._training_again(began)
            if self._from_grad or not real:
                self._forget_grad(real)
            self._backward_ever = self._backward_ever or real
            record = probe.steps.record
            if probe.steps.evaluates:
                record.forget_losses()
            first = not record.backwards
            if first or not probe.steps.within():
                record.backwards += 1
                self._read(losses, record)
            if probe.watching and probe.inspectors:
                probe.budget.base += monotonic() - began
                probe.inspect("backward_begins", losses[0], first)
                began = monotonic()
        except Exception as error:
            probe.failed("the beginning of a backward", error)
        finally:
            probe.budget.base += monotonic() - began
        return thread in self._inside

    def _training_again(self, now):
        if self.probe.loaders.evaluating:
            self.probe.loaders.training_resumed(now)
        self.probe.phase("training")

    def _forget_grad(self, real):
        """A real backward of the same step outweighs what `autograd.grad` gave."""
        if real:
            self.probe.steps.record.forget_losses()
        self._from_grad = not real

    def _read(self, losses, record):
        """The losses of one backward: their sum, which is what is minimised."""
        if not self._seen:
            self._seen = True
            self.probe.see("losses")
        scaler, scalars = self.probe.scaler, self.probe.scalars
        loss = scaler.unscaled(losses[0]) if scaler.scaling else losses[0]
        if len(losses) == 1 and type(loss) is self._tensor and loss.is_cpu and loss.numel() == 1:
            value = loss.item()
            record.loss_sum += value
            record.loss_count += 1
            self.probe.last_loss = value
            return
        with self.probe.torch.no_grad():
            parts = [scalars.local(scaler.unscaled(loss).detach()) for loss in losses]
            means = [part.reshape(()) if part.numel() == 1 else part.mean() for part in parts]
            if all(mean.is_cpu for mean in means):
                record.add_loss(sum(mean.item() for mean in means))
            else:
                scalars.later(sum(means[1:], means[0]), self._arriving(record.expect_loss()))

    def _arriving(self, add):
        def arrived(values):
            add(values)
            if values:
                self.probe.last_loss = values[0]

        return arrived

    def _is_stand_in(self, loss):
        """What a compiler traces with, and a graph edge, are no losses."""
        return type(loss).__module__.startswith("torch._subclasses") or not isinstance(loss, self._tensor)

    # --- what else is known of a step's loss and gradient --------------------------------------------------------

    def parts(self, values):
        if self.probe.quick.on:
            self.probe.quick.leave()
        record = self.probe.steps.record
        for name, value in values.items():
            if isinstance(value, (int, float)):
                record.add_part(name, float(value))
            else:
                self.probe.scalars.later(value, record.expect_part(name))

    def clipped(self, norm):
        """`clip_grad_norm_` returned the norm that the gradients had."""
        probe = self.probe
        if not probe.awake:
            return
        began = monotonic()
        try:
            if probe.quick.on and probe.quick.clipped(norm):
                return
            probe.see("gradient norms")
            record = probe.steps.record
            if type(norm) is self._tensor and norm.is_cpu:
                record.add_norm(norm.item())
            elif isinstance(norm, self._tensor):
                probe.scalars.later(norm, record.expect_norm())
        except Exception as error:
            probe.failed("reading a gradient norm", error)
        finally:
            probe.budget.base += monotonic() - began


def _as_tuple(values):
    if isinstance(values, (tuple, list)):
        return tuple(values)
    return () if values is None else (values,)
