"""Reads losses where they are made: at the entry of an outermost backward.

`Tensor.backward` calls `torch.autograd.backward`, so that one is the only door. A `torch.autograd.grad` counts as the
backward of a step only where parameters are asked for, no graph of the gradient is built (gradient penalties and inner
loops do that), and no real backward comes in the same step.
"""

import threading
import time

GRAD_INPUTS_LOOKED_AT = 8


class Losses(object):
    def __init__(self, probe):
        self.probe = probe
        self.total = 0
        """Outermost backwards so far."""
        self._inside = set()
        self._from_grad = False
        """The losses of the step at hand come from `autograd.grad`."""
        self._backward_ever = False
        self._seen = False
        torch = probe.torch
        self._tensor_types = (torch.Tensor, torch.nn.Parameter)
        self._graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)

    # --- the doors -----------------------------------------------------------------------------------------------

    def backward_begins(self, args, kwargs):
        """True when this is an outermost backward, whose end is to be told."""
        tensors = args[0] if args else kwargs.get("tensors")
        return self._begins(_as_tuple(tensors), real=True)

    def grad_begins(self, args, kwargs):
        if self._graph_task() != -1 or self._backward_ever:
            return False
        create_graph = args[4] if len(args) > 4 else kwargs.get("create_graph", False)
        if create_graph:
            return False
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs", ())
        if isinstance(inputs, dict):
            inputs = tuple(inputs.values())
        parameter = self.probe.torch.nn.Parameter
        if not any(isinstance(item, parameter) for item in _as_tuple(inputs)[:GRAD_INPUTS_LOOKED_AT]):
            return False
        return self._begins(_as_tuple(args[0] if args else kwargs.get("outputs")), real=False)

    def ended(self, succeeded):
        """The backward that `backward_begins` or `grad_begins` said True for is over."""
        began = time.perf_counter_ns()
        probe = self.probe
        self._inside.discard(threading.get_ident())
        try:
            if succeeded:
                heart = probe.heart
                if heart is not None:
                    heart.backwards(self.total)
                    heart.active(time.monotonic())
                probe.steps.backward_ended()
        except Exception as error:
            probe.failed("the end of a backward", error)
        finally:
            probe.budget.base_ns += time.perf_counter_ns() - began

    def parts(self, values):
        record = self.probe.steps.record
        for name, value in values.items():
            if isinstance(value, (int, float)):
                record.add_part(name, float(value))
            else:
                self._read_part(record, name, value)

    # --- reading -------------------------------------------------------------------------------------------------

    def _begins(self, tensors, *, real):
        probe = self.probe
        thread = threading.get_ident()
        if self._graph_task() != -1 or thread in self._inside or not tensors or self._is_traced(tensors[0]):
            return False
        if not probe.awake and not probe.claim("backward"):
            return False
        began = time.perf_counter_ns()
        try:
            self._inside.add(thread)
            self.total += 1
            self._enter(tensors, began, real=real)
        except Exception as error:
            probe.failed("the beginning of a backward", error)
        return True

    def _enter(self, tensors, began, *, real):
        probe = self.probe
        record = probe.steps.record
        if probe.loaders.evaluating:
            probe.loaders.training_resumed(time.monotonic())
        probe.phase("training")
        if real:
            self._backward_ever = True
            if self._from_grad:
                record.forget_losses()
                self._from_grad = False
        else:
            self._from_grad = True
        first = not record.backwards
        if first or not probe.steps.within():
            record.backwards += 1
            self._read(tensors, record)
        probe.budget.base_ns += time.perf_counter_ns() - began
        if probe.looks:
            probe.look("backward_begins", tensors[0], first)

    def _read(self, tensors, record):
        """The losses of one backward: their sum, which is what is minimised."""
        if not self._seen:
            self._seen = True
            self.probe.see("losses")
        loss = self.probe.scaler.unscaled(tensors[0])
        if len(tensors) == 1 and type(loss) is self._tensor_types[0] and loss.is_cpu and loss.numel() == 1:
            record.add_loss(loss.item())
            return
        scalars = self.probe.scalars
        with self.probe.torch.no_grad():
            losses = [scalars.local(self.probe.scaler.unscaled(tensor).detach()) for tensor in tensors]
            means = [loss if loss.numel() == 1 else loss.mean() for loss in losses]
            if all(mean.is_cpu for mean in means):
                record.add_loss(sum(mean.item() for mean in means))
                return
            total = means[0] if len(means) == 1 else sum(mean.reshape(()) for mean in means)
            scalars.later(total, record.expect_loss())

    def _read_part(self, record, name, tensor):
        record.waiting += 1

        def arrived(values):
            record.waiting -= 1
            if values:
                record.add_part(name, values[0])

        self.probe.scalars.later(tensor, arrived)

    def _is_traced(self, tensor):
        """A stand-in that a compiler traces with, not a loss."""
        kind = type(tensor)
        return kind not in self._tensor_types and (
            kind.__module__.startswith("torch._subclasses") or not hasattr(tensor, "detach")
        )

    # --- gradient norms ------------------------------------------------------------------------------------------

    def clipped(self, norm):
        """`clip_grad_norm_` returned the norm that the gradients had."""
        probe = self.probe
        if not probe.awake:
            return
        began = time.perf_counter_ns()
        try:
            probe.see("gradient norms")
            record = probe.steps.record
            if type(norm) is self._tensor_types[0] and norm.is_cpu:
                record.add_norm(norm.item())
            elif isinstance(norm, self._tensor_types[0]):
                probe.scalars.later(norm, record.expect_norm())
        except Exception as error:
            probe.failed("reading a gradient norm", error)
        finally:
            probe.budget.base_ns += time.perf_counter_ns() - began


def _as_tuple(values):
    if isinstance(values, (tuple, list)):
        return tuple(values)
    return () if values is None else (values,)
