"""The places where the probe stands in torch's way: two optimizer hooks and a few wrapped functions.

All of them are thin, and all begin alike: while torch.compile traces, they are the original and nothing else, so that a
traced program has the graphs and the breaks that it has without us. When a compiled program calls them as they are,
outside a graph, dynamo must run them and not compile them (`compiled.py` sees to that). Nothing but such functions may
stand in this file, because dynamo looks into it.
"""

import functools
import sys
from time import monotonic

from . import dynamo
from .import_hooks import after_import
from .step_nesting import until_over


def install(probe):
    torch = probe.torch
    is_compiling = dynamo.tracing_test(torch)
    codes = []
    _install_step_hooks(probe, is_compiling, codes)
    _install_backward(probe, is_compiling, codes)
    after_import("torch.nn.utils.clip_grad", lambda module: _install_clip(probe, module, is_compiling, codes))
    after_import("torch.utils.data.dataloader", lambda module: _install_loader(probe, module, is_compiling, codes))
    after_import("torch.optim.lr_scheduler", lambda module: _install_schedulers(probe, module, codes))
    _install_scaler(probe, is_compiling, codes)
    after_import("torch._dynamo", lambda module: dynamo.keep_out(module, codes))


def _install_step_hooks(probe, is_compiling, codes):
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def step_begins(optimizer, args, kwargs):
        if is_compiling():
            return None
        quick = probe.quick
        if quick.on and quick.begins(optimizer):
            return None
        if probe.steps.begins(optimizer, sys._getframe(1)):
            return until_over(args, probe.steps, optimizer), kwargs
        return None

    def step_ended(optimizer, args, kwargs):
        if is_compiling():
            return
        quick = probe.quick
        if not quick.on or not quick.ticks(optimizer):
            probe.steps.ended(optimizer, sys._getframe(1))

    codes.extend([step_begins.__code__, step_ended.__code__])
    register_optimizer_step_pre_hook(step_begins)
    register_optimizer_step_post_hook(step_ended)


def _install_backward(probe, is_compiling, codes):
    autograd = probe.torch.autograd
    original_backward, original_grad = autograd.backward, autograd.grad

    @functools.wraps(original_backward)
    def backward(*args, **kwargs):
        if is_compiling():
            return original_backward(*args, **kwargs)
        quick = probe.quick
        if (quick.on and quick.backward_begins(args)) or not probe.losses.backward_begins(args, kwargs):
            return original_backward(*args, **kwargs)
        try:
            result = original_backward(*args, **kwargs)
        except BaseException:
            probe.losses.ended(succeeded=False)
            raise
        probe.losses.ended(succeeded=True)
        return result

    @functools.wraps(original_grad)
    def grad(*args, **kwargs):
        if is_compiling() or not probe.losses.grad_begins(args, kwargs):
            return original_grad(*args, **kwargs)
        try:
            result = original_grad(*args, **kwargs)
        except BaseException:
            probe.losses.ended(succeeded=False)
            raise
        probe.losses.ended(succeeded=True)
        return result

    codes.extend([backward.__code__, grad.__code__])
    autograd.backward, autograd.grad = backward, grad


def _install_clip(probe, module, is_compiling, codes):
    original = module.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(*args, **kwargs):
        norm = original(*args, **kwargs)
        if not is_compiling():
            probe.losses.clipped(norm)
        return norm

    codes.append(clip_grad_norm_.__code__)
    for holder in (module, probe.torch.nn.utils):
        if getattr(holder, "clip_grad_norm_", None) is original:
            holder.clip_grad_norm_ = clip_grad_norm_


def _install_loader(probe, module, is_compiling, codes):
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__

    @functools.wraps(original)
    def __next__(self):  # noqa: N807 - it becomes that method
        if is_compiling():
            return original(self)
        quick = probe.quick
        if quick.on and quick.reads(self):
            began = monotonic()
            try:
                batch = original(self)
            except StopIteration:
                probe.loaders.usual_exhausted(self)
                raise
            quick.fetched(monotonic() - began)
            return batch
        token = probe.loaders.fetch_begins(self)
        if token is None:
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            probe.loaders.exhausted(self, token)
            raise
        except BaseException:
            probe.loaders.fetch_failed(token)
            raise
        probe.loaders.fetched(token, batch)
        return batch

    codes.append(__next__.__code__)
    iterator_class.__next__ = __next__


def _install_schedulers(probe, module, codes):
    scheduler_class = getattr(module, "LRScheduler", None) or module._LRScheduler
    original = scheduler_class.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):  # noqa: N807 - it becomes that method
        original(self, *args, **kwargs)
        probe.schedules.made(self)

    codes.append(__init__.__code__)
    scheduler_class.__init__ = __init__


def _install_scaler(probe, is_compiling, codes):
    torch = probe.torch
    scaler_class = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    original_scale, original_step = scaler_class.scale, scaler_class.step

    @functools.wraps(original_scale)
    def scale(self, outputs):
        scaled = original_scale(self, outputs)
        if not is_compiling() and scaled is not outputs:
            probe.scaler.scaled(self, outputs, scaled)
        return scaled

    @functools.wraps(original_step)
    def step(self, optimizer, *args, **kwargs):
        if is_compiling():
            return original_step(self, optimizer, *args, **kwargs)
        entered = probe.scaler.step_begins()
        result = original_step(self, optimizer, *args, **kwargs)
        probe.scaler.step_ended(self, optimizer, entered)
        return result

    codes.extend([scale.__code__, step.__code__])
    scaler_class.scale, scaler_class.step = scale, step
