"""Patches of torch: two optimizer hooks and a few wrapped functions.

All of them are thin and start alike: while torch.compile traces, they only call the original, so that a traced program
has the same graphs and graph breaks as without the probe. When a compiled program calls them outside a graph, dynamo
must run them and not compile them (`dynamo.py` takes care of that). This file may contain only such functions, because
dynamo traces into it.
"""

import functools
import sys
from time import monotonic

from . import dynamo
from .import_hooks import after_import
from .step_nesting import release_after_step


def install(probe):
    torch = probe.torch
    is_compiling = dynamo.find_is_compiling(torch)
    codes = []
    _install_step_hooks(probe, is_compiling, codes)
    _install_backward(probe, is_compiling, codes)
    after_import("torch.nn.utils.clip_grad", lambda module: _install_clip(probe, module, is_compiling, codes))
    after_import("torch.utils.data.dataloader", lambda module: _install_loader(probe, module, is_compiling, codes))
    after_import("torch.optim.lr_scheduler", lambda module: _install_schedulers(probe, module, codes))
    _install_scaler(probe, is_compiling, codes)
    after_import("torch._dynamo", lambda module: dynamo.exclude_probe(module, codes))


def _install_step_hooks(probe, is_compiling, codes):
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def step_begins(optimizer, args, kwargs):
        if is_compiling():
            return None
        fast_path = probe.fast_path
        if fast_path.on and fast_path.begin_step(optimizer):
            return None
        if probe.steps.begin_step(optimizer, sys._getframe(1)):
            return release_after_step(args, probe.steps, optimizer), kwargs
        return None

    def step_ended(optimizer, args, kwargs):
        if is_compiling():
            return
        fast_path = probe.fast_path
        if not fast_path.on or not fast_path.end_step(optimizer):
            probe.steps.end_step(optimizer, sys._getframe(1))

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
        fast_path = probe.fast_path
        if (fast_path.on and fast_path.begin_backward(args)) or not probe.losses.begin_backward(args, kwargs):
            return original_backward(*args, **kwargs)
        try:
            result = original_backward(*args, **kwargs)
        except BaseException:
            probe.losses.end_backward(succeeded=False)
            raise
        probe.losses.end_backward(succeeded=True)
        return result

    @functools.wraps(original_grad)
    def grad(*args, **kwargs):
        if is_compiling() or not probe.losses.begin_grad(args, kwargs):
            return original_grad(*args, **kwargs)
        try:
            result = original_grad(*args, **kwargs)
        except BaseException:
            probe.losses.end_backward(succeeded=False)
            raise
        probe.losses.end_backward(succeeded=True)
        return result

    codes.extend([backward.__code__, grad.__code__])
    autograd.backward, autograd.grad = backward, grad


def _install_clip(probe, module, is_compiling, codes):
    original = module.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(*args, **kwargs):
        norm = original(*args, **kwargs)
        if not is_compiling():
            probe.losses.add_norm(norm)
        return norm

    codes.append(clip_grad_norm_.__code__)
    for owner in (module, probe.torch.nn.utils):
        if getattr(owner, "clip_grad_norm_", None) is original:
            owner.clip_grad_norm_ = clip_grad_norm_


def _install_loader(probe, module, is_compiling, codes):
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__

    @functools.wraps(original)
    def __next__(self):  # noqa: N807 - it replaces that method
        if is_compiling():
            return original(self)
        fast_path = probe.fast_path
        if fast_path.on and fast_path.begin_fetch(self):
            began = monotonic()
            try:
                batch = original(self)
            except StopIteration:
                probe.loaders.usual_loader_exhausted(self)
                raise
            fast_path.end_fetch(monotonic() - began)
            return batch
        token = probe.loaders.begin_fetch(self)
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
        probe.loaders.end_fetch(token, batch)
        return batch

    codes.append(__next__.__code__)
    iterator_class.__next__ = __next__


def _install_schedulers(probe, module, codes):
    scheduler_class = getattr(module, "LRScheduler", None) or module._LRScheduler
    original = scheduler_class.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):  # noqa: N807 - it replaces that method
        original(self, *args, **kwargs)
        probe.schedules.add(self)

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
            probe.scaler.add_scaled(self, outputs, scaled)
        return scaled

    @functools.wraps(original_step)
    def step(self, optimizer, *args, **kwargs):
        if is_compiling():
            return original_step(self, optimizer, *args, **kwargs)
        entered = probe.scaler.begin_step()
        result = original_step(self, optimizer, *args, **kwargs)
        probe.scaler.end_step(self, optimizer, entered)
        return result

    codes.extend([scale.__code__, step.__code__])
    scaler_class.scale, scaler_class.step = scale, step
