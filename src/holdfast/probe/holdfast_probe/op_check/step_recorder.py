"""The figures of each step, with nothing in between: what a race does shows only where nobody waits for each operator.

    {"event": "step-record", "step": 1, "losses": [..], "gradients": {"0.3": [norm, sum]}, "weights": {"0.3": [norm, sum]}}

Tensors are named by group and place in the optimizer. So that runs on a device and on the CPU can be set side by side, all
begin from the same seeds, and random numbers are drawn on the CPU wherever they are needed. With `jitter`, each result of
arithmetic is moved by so much of itself, up or down: how far the figures then wander is what rounding can do to them. It is
one number, or {"matrix": .., "plain": ..}, as the operator check's last line says of a device.
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
MOVERS = frozenset([
    "copy_", "_to_copy", "clone", "fill_", "zero_", "zeros", "zeros_like", "ones", "ones_like", "new_zeros", "new_ones", "full",
    "full_like", "arange", "linspace", "eye", "scalar_tensor", "cat", "stack", "index", "index_select", "gather", "where", "flip", "roll",
    "repeat", "masked_fill", "masked_fill_", "index_put_", "index_put", "scatter", "embedding", "select_backward", "slice_backward",
    "max", "min", "amax", "amin", "maximum", "minimum", "relu", "relu_", "clamp", "clamp_", "sort", "topk", "neg", "abs", "floor", "round",
    "constant_pad_nd", "max_pool2d_with_indices", "upsample_nearest2d", "_reshape_copy", "triu", "tril",
])  # fmt: skip
"""They move or choose numbers and round none."""


def install(torch, probe_like, steps=3, name="run", jitter=0.0, jitter_seed=0):
    """Records so many steps to `steps-<name>.jsonl`, and ends the process."""
    recorder = Recorder(torch, probe_like, steps, name)
    recorder.start(Level(torch, jitter, jitter_seed))
    return recorder


class Level(object):
    """What makes runs comparable: one source of random numbers, and the jitter."""

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

        level = self

        class LevelMode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return level.called(function, args, kwargs or {})

        return LevelMode()

    def called(self, function, args, kwargs):
        operator = self._operators.get(function)
        if operator is None:
            operator = self._operators[function] = Operator(self._torch, function)
        if operator.why_not == "random":
            return self._drawn(operator, function, args, kwargs)
        result = function(*args, **kwargs)
        jitter = self._matrix if operator.name in MATRIX else self._plain
        if jitter and operator.why_not is None and operator.name not in MOVERS:
            self._move(result, jitter)
        return result

    def _drawn(self, operator, function, args, kwargs):
        """Random numbers of the CPU, for a device too."""
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
            share, training = args[1], args[2]
            if training is False:
                return function(*args, **kwargs)
            kept = torch.empty(first.shape, device="cpu").bernoulli_(1.0 - share).to(torch.bool).to(first.device)
            scale = 0.0 if share >= 1.0 else 1.0 / (1.0 - share)
            return first * kept * scale, kept
        if (operator.name.endswith("_") and len(args) < 2) or not any(isinstance(a, torch.Tensor) for a in args[1:]):
            drawn = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="cpu")
            if not operator.name.endswith("_"):
                drawn.copy_(to_host(torch, first))
            result = function(drawn, *args[1:], **_on_host(torch, kwargs))
            if operator.name.endswith("_"):
                return first.copy_(result)
            return result.to(first.device)
        return function(*args, **kwargs)

    def _move(self, result, jitter):
        torch = self._torch
        if isinstance(result, (list, tuple)):
            for value in result:
                self._move(value, jitter)
        elif isinstance(result, torch.Tensor) and result.is_floating_point() and result.layout == torch.strided:
            signs = torch.empty(result.shape, dtype=torch.float32, device="cpu").bernoulli_(
                0.5, generator=self._generator
            )
            factor = signs.mul_(2 * jitter).add_(1.0 - jitter).to(result.device, result.dtype)
            # Rounding loses digits of 0.1, never of 3: a number that counts or points somewhere stays whole.
            result.mul_(torch.where(result == result.round(), torch.ones_like(factor), factor))


def _on_host(torch, kwargs):
    return dict(kwargs, device=torch.device("cpu")) if kwargs.get("device") is not None else kwargs


class Recorder(object):
    def __init__(self, torch, probe_like, steps, name):
        self._torch = torch
        self._probe = probe_like
        self._asked = steps
        self._losses = []
        self._path = os.path.join(probe_like.attempt_dir, "steps-%s.jsonl" % name)
        self._file = None
        self._modes = []
        self._off = False

    def start(self, level):
        from . import Steps

        if getattr(self._probe, "inspectors", None):
            self._probe.inspectors = []
        level.seed()
        mode = level.mode()
        mode.__enter__()
        self._modes.append(mode)
        self.counter = Steps(self._torch, lambda optimizer: None, self._step_ended)
        self._listen()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def stop(self):
        """Takes everything away: for tests, which go on in the same process."""
        self._off = True
        self.counter.remove()
        self._torch.autograd.backward = self._original
        while self._modes:
            self._modes.pop().__exit__(None, None, None)
        if self._file is not None:
            self._file.close()

    def _listen(self):
        """Losses are what backward starts from. They are kept on the device until the step is over."""
        self._original = original = self._torch.autograd.backward

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
                weights[name] = self._figures(weight)
                if weight.grad is not None:
                    gradients[name] = self._figures(weight.grad)
        self._write({"event": "step-record", "step": self.counter.count, "at": round(time.time(), 3), "losses": losses,
                     "gradients": gradients, "weights": weights})  # fmt: skip
        if self.counter.count >= self._asked:
            from . import leave

            leave(self._probe)

    def _figures(self, tensor):
        value = to_host(self._torch, tensor.detach())
        if value.is_complex():
            value = self._torch.view_as_real(value)
        value = value.double()
        return [float(value.norm()), float(value.sum())]

    def _write(self, record):
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._path, flags, 0o600), "a")  # it is written to until the process ends
        self._file.write(json.dumps(plain(record)) + "\n")
        self._file.flush()
