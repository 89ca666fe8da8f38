"""Records the figures of each step without synchronizing in between: a race shows only if nothing waits for each operator.

    {"event": "step-record", "step": 1, "losses": [..], "gradients": {"0.3": [norm, sum]}, "weights": {"0.3": [norm, sum]}}

Tensors are named by group and index in the optimizer. To make runs on a device and on the CPU comparable, all runs start
from the same seeds, and all random numbers are drawn on the CPU. With `jitter`, each arithmetic result is changed by this
fraction of itself, up or down: the resulting spread of the figures is what rounding can cause. `jitter` is one number, or
{"matrix": .., "plain": ..}, as in the last line of the operator check for a device.
"""

import json
import os
import random
import time

from ..event_writer import plain
from ..import_hooks import after_import
from .cpu_mirror import to_host
from .operators import Operator
from .precision import MATRIX

SEED = 1
EXACT_OPERATORS = frozenset([
    "copy_", "_to_copy", "clone", "fill_", "zero_", "zeros", "zeros_like", "ones", "ones_like", "new_zeros", "new_ones", "full",
    "full_like", "arange", "linspace", "eye", "scalar_tensor", "cat", "stack", "index", "index_select", "gather", "where", "flip", "roll",
    "repeat", "masked_fill", "masked_fill_", "index_put_", "index_put", "scatter", "embedding", "select_backward", "slice_backward",
    "max", "min", "amax", "amin", "maximum", "minimum", "relu", "relu_", "clamp", "clamp_", "sort", "topk", "neg", "abs", "floor", "round",
    "constant_pad_nd", "max_pool2d_with_indices", "upsample_nearest2d", "_reshape_copy", "triu", "tril",
])  # fmt: skip
"""These operators copy or select numbers and do not round."""


def install(torch, probe_like, steps=3, name="run", jitter=0.0, jitter_seed=0):
    """Record `steps` steps to `steps-<name>.jsonl`, then exit the process."""
    recorder = Recorder(torch, probe_like, steps, name)
    recorder.start(RunNormalizer(torch, jitter, jitter_seed))
    return recorder


class RunNormalizer(object):
    """Makes runs comparable: one source of random numbers, and the jitter."""

    def __init__(self, torch, jitter, seed):
        self._torch = torch
        by_kind = jitter if isinstance(jitter, dict) else {"plain": jitter}
        self._plain = float(by_kind.get("plain") or 0.0)
        self._matrix = float(by_kind.get("matrix") or self._plain)
        self._generator = torch.Generator("cpu").manual_seed(1000 + seed)
        self._operators = {}

    def seed(self):
        torch = self._torch
        torch.manual_seed(SEED)
        random.seed(SEED)
        after_import("numpy", lambda numpy: numpy.random.seed(SEED))

    def mode(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        normalizer = self

        class NormalizerMode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return normalizer.handle_call(function, args, kwargs or {})

        return NormalizerMode()

    def handle_call(self, function, args, kwargs):
        operator = self._operators.get(function)
        if operator is None:
            operator = self._operators[function] = Operator(self._torch, function)
        if operator.skip_reason == "random":
            return self._draw_on_cpu(operator, function, args, kwargs)
        result = function(*args, **kwargs)
        jitter = self._matrix if operator.name in MATRIX else self._plain
        if jitter and operator.skip_reason is None and operator.name not in EXACT_OPERATORS:
            self._apply_jitter(result, jitter)
        return result

    def _draw_on_cpu(self, operator, function, args, kwargs):
        """Draw random numbers on the CPU, for a device too."""
        torch = self._torch
        host = torch.device("cpu")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if kwargs.get("generator") is not None or (first is not None and first.device == host):
            return function(*args, **kwargs)
        if first is None:
            device = kwargs.get("device")
            if device is None or torch.device(device) == host:
                return function(*args, **kwargs)
            return function(*args, **dict(kwargs, device=host)).to(device)
        if operator.name == "native_dropout":
            probability, training = args[1], args[2]
            if training is False:
                return function(*args, **kwargs)
            mask = torch.empty(first.shape, device="cpu").bernoulli_(1.0 - probability).to(torch.bool).to(first.device)
            scale = 0.0 if probability >= 1.0 else 1.0 / (1.0 - probability)
            return first * mask * scale, mask
        if (operator.name.endswith("_") and len(args) < 2) or not any(isinstance(a, torch.Tensor) for a in args[1:]):
            cpu_tensor = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="cpu")
            if not operator.name.endswith("_"):
                cpu_tensor.copy_(to_host(torch, first))
            result = function(cpu_tensor, *args[1:], **_with_cpu_device(torch, kwargs))
            if operator.name.endswith("_"):
                return first.copy_(result)
            return result.to(first.device)
        return function(*args, **kwargs)

    def _apply_jitter(self, result, jitter):
        torch = self._torch
        if isinstance(result, (list, tuple)):
            for value in result:
                self._apply_jitter(value, jitter)
        elif isinstance(result, torch.Tensor) and result.is_floating_point() and result.layout == torch.strided:
            signs = torch.empty(result.shape, dtype=torch.float32, device="cpu").bernoulli_(
                0.5, generator=self._generator
            )
            factor = signs.mul_(2 * jitter).add_(1.0 - jitter).to(result.device, result.dtype)
            # Rounding loses digits of 0.1, never of 3. So integers, which may be counts or indices, stay unchanged.
            result.mul_(torch.where(result == result.round(), torch.ones_like(factor), factor))


def _with_cpu_device(torch, kwargs):
    return dict(kwargs, device=torch.device("cpu")) if kwargs.get("device") is not None else kwargs


class Recorder(object):
    def __init__(self, torch, probe_like, steps, name):
        self._torch = torch
        self._probe = probe_like
        self._steps = steps
        self._losses = []
        self._path = os.path.join(probe_like.attempt_dir, "steps-%s.jsonl" % name)
        self._file = None
        self._modes = []
        self._off = False

    def start(self, normalizer):
        from . import Steps

        if getattr(self._probe, "inspectors", None):
            self._probe.inspectors = []
        normalizer.seed()
        mode = normalizer.mode()
        mode.__enter__()
        self._modes.append(mode)
        self.counter = Steps(self._torch, lambda optimizer: None, self._step_ended)
        self._record_losses()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def stop(self):
        """Remove the mode and the hooks. For tests, which continue in the same process."""
        self._off = True
        self.counter.remove()
        self._torch.autograd.backward = self._original_backward
        while self._modes:
            self._modes.pop().__exit__(None, None, None)
        if self._file is not None:
            self._file.close()

    def _record_losses(self):
        """Record the tensors that backward starts from as losses. They stay on the device until the step ends."""
        self._original_backward = original = self._torch.autograd.backward

        def backward(tensors, *args, **kwargs):
            for tensor in [tensors] if isinstance(tensors, self._torch.Tensor) else tensors:
                if tensor.numel() == 1:
                    self._losses.append(tensor.detach().clone())
            return original(tensors, *args, **kwargs)

        self._torch.autograd.backward = backward

    def _forked(self):
        self._off = True

    def _step_ended(self, optimizer, counts):
        if not counts or self._off:
            return
        losses = [float(to_host(self._torch, loss)) for loss in self._losses]
        self._losses = []
        gradients, weights = {}, {}
        for group_number, group in enumerate(optimizer.param_groups):
            for number, weight in enumerate(group["params"]):
                name = "%d.%d" % (group_number, number)
                weights[name] = self._compute_figures(weight)
                if weight.grad is not None:
                    gradients[name] = self._compute_figures(weight.grad)
        self._write({"event": "step-record", "step": self.counter.count, "at": round(time.time(), 3), "losses": losses,
                     "gradients": gradients, "weights": weights})  # fmt: skip
        if self.counter.count >= self._steps:
            from . import exit_process

            exit_process(self._probe)

    def _compute_figures(self, tensor):
        value = to_host(self._torch, tensor.detach())
        if value.is_complex():
            value = self._torch.view_as_real(value)
        value = value.double()
        return [float(value.norm()), float(value.sum())]

    def _write(self, record):
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._path, flags, 0o600), "a")  # it stays open until the process exits
        self._file.write(json.dumps(plain(record)) + "\n")
        self._file.flush()
