"""Losses, read at the start of an outermost backward.

`Tensor.backward` calls `torch.autograd.backward`, so only that function is patched. A `torch.autograd.grad` counts as
the backward of a step only if it computes gradients of parameters, builds no graph of the gradient (gradient penalties
and inner loops do that), and this process has never called a real backward.
"""

from threading import get_ident
from time import monotonic

MAX_INPUTS_CHECKED = 8


class Losses(object):
    def __init__(self, probe):
        self.probe = probe
        self.total = 0
        """Number of outermost backwards so far."""
        self._inside = set()
        """Threads that are inside a backward."""
        self._from_grad = False
        """Whether the losses of the current step come from `autograd.grad`."""
        self._backward_ever = False
        self._seen = False
        self._tensor = probe.torch.Tensor
        self._graph_task = getattr(probe.torch._C, "_current_graph_task_id", lambda: -1)

    # --- called from torch_patches -------------------------------------------------------------------------------

    def begin_backward(self, args, kwargs):
        """Return True if this is an outermost backward. Then `end_backward` must be called."""
        if self._graph_task() != -1:
            return False
        return self._begin(args[0] if args else kwargs.get("tensors"), real=True)

    def begin_grad(self, args, kwargs):
        if self._backward_ever or self._graph_task() != -1:
            return False
        create_graph = args[4] if len(args) > 4 else kwargs.get("create_graph", False)
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs", ())
        inputs = tuple(inputs.values()) if isinstance(inputs, dict) else _to_tuple(inputs)
        parameter = self.probe.torch.nn.Parameter
        if create_graph or not any(isinstance(item, parameter) for item in inputs[:MAX_INPUTS_CHECKED]):
            return False
        return self._begin(args[0] if args else kwargs.get("outputs"), real=False)

    def end_backward(self, succeeded):
        """Handle the end of a backward for which `begin_backward` or `begin_grad` returned True."""
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

    def _begin(self, losses, real):
        probe = self.probe
        thread = get_ident()
        if thread in self._inside or (not probe.awake and not probe.claim("backward")):
            return False
        began = monotonic()
        try:
            losses = (losses,) if type(losses) is self._tensor else _to_tuple(losses)
            if not losses or (type(losses[0]) is not self._tensor and self._is_not_a_loss(losses[0])):
                return False
            self._inside.add(thread)
            self.total += 1
            if probe.phase_now != "training":
                self._resume_training_phase(began)
            if self._from_grad or not real:
                self._update_from_grad(real)
            self._backward_ever = self._backward_ever or real
            record = probe.steps.record
            if probe.steps.evaluates:
                record.discard_losses()
            first = not record.backwards
            if first or not probe.steps.is_inside_step():
                record.backwards += 1
                self._read(losses, record)
            if probe.watching and probe.inspectors:
                probe.budget.base += monotonic() - began
                probe.inspect("backward_begins", losses[0], first)
                began = monotonic()
        except Exception as error:
            probe.failed("the start of a backward", error)
        finally:
            probe.budget.base += monotonic() - began
        return thread in self._inside

    def _resume_training_phase(self, now):
        if self.probe.loaders.evaluating:
            self.probe.loaders.training_resumed(now)
        self.probe.phase("training")

    def _update_from_grad(self, real):
        """Discard the losses from `autograd.grad` if the same step has a real backward."""
        if real:
            self.probe.steps.record.discard_losses()
        self._from_grad = not real

    def _read(self, losses, record):
        """Read the losses of one backward and record their sum, which is what the training minimizes."""
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
                scalars.later(sum(means[1:], means[0]), self._make_callback(record.expect_loss()))

    def _make_callback(self, add):
        def on_values(values):
            add(values)
            if values:
                self.probe.last_loss = values[0]

        return on_values

    def _is_not_a_loss(self, loss):
        """Return True for graph edges and for the fake tensors that a compiler traces with."""
        return type(loss).__module__.startswith("torch._subclasses") or not isinstance(loss, self._tensor)

    # --- other information about a step's loss and gradient ------------------------------------------------------

    def parts(self, values):
        if self.probe.fast_path.on:
            self.probe.fast_path.leave()
        record = self.probe.steps.record
        for name, value in values.items():
            if isinstance(value, (int, float)):
                record.add_part(name, float(value))
            else:
                self.probe.scalars.later(value, record.expect_part(name))

    def add_norm(self, norm):
        """Record the gradient norm that `clip_grad_norm_` returned."""
        probe = self.probe
        if not probe.awake:
            return
        began = monotonic()
        try:
            if probe.fast_path.on and probe.fast_path.add_norm(norm):
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


def _to_tuple(values):
    if isinstance(values, (tuple, list)):
        return tuple(values)
    return () if values is None else (values,)
