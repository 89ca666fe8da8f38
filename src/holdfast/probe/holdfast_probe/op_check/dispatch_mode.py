"""The dispatch mode: every operator on a device once there, and once more on the CPU from the same memory.

The training gets the device's own result, so that it goes the way that it would have gone, and what one operator spoils is
not blamed on the next: each is compared from the inputs that it really had.
"""

import time

from .call import Call
from .compare import Wrong
from .cpu_mirror import CpuMirror, NotComparable, tensors_in
from .findings import Finding, smallest_workaround
from .known_issues import Case, known_issue
from .operators import Operator
from .precision import Precision
from .source_location import SourceLocation

HOST = frozenset(["cpu", "meta"])
MAX_LINES = 200
MAX_SIGNATURES = 20000
OVERDRAWN = 2.0
"""Signatures that come for the first time are compared beyond the budget too, up to so many times of it."""


def dispatch_mode(torch, checker):
    """A mode that hands every operator to the checker. A function, because its base class is the user's torch's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class OpCheckMode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if checker.off:
                return function(*args, **(kwargs or {}))
            return checker.called(function, args, kwargs or {})

    return OpCheckMode()


class OpChecker(object):
    def __init__(self, torch, tell, seconds, steps):
        """`tell` takes each new finding."""
        self._torch = torch
        self._tell = tell
        self._seconds, self._steps = seconds, steps
        self.off = False
        self.step = 1
        """The step that is being computed."""
        self.optimizing = False
        self.calls = self.compared = 0
        self.spent = 0.0
        self.signatures = {}
        """Of each call's name and tensors: how often it was compared."""
        self.skipped = {}
        """Why calls on the device were not compared -> how many."""
        self.findings = {}
        self.failures = {}
        self.devices = {}
        self._operators = {}
        self._graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._generator = torch.Generator("cpu").manual_seed(20)
        self._where = SourceLocation(torch)
        self._where.remember_forward()

    # --- which calls ---------------------------------------------------------------------------------------------

    def called(self, function, args, kwargs):
        operator = self._operators.get(function)
        if operator is None:
            operator = self._operators[function] = Operator(self._torch, function)
        if operator.why_not is not None:
            return function(*args, **kwargs)
        tensors = tensors_in(self._torch, (args, kwargs), [])
        device = self._device_of(tensors, kwargs)
        if device is None:
            return function(*args, **kwargs)
        self.calls += 1
        began = time.perf_counter()
        try:
            chosen = self._chosen(operator, tensors)
            copies = CpuMirror(self._torch, args, kwargs, self._written(operator, args, kwargs)) if chosen else None
            if chosen and device.type not in self.devices:
                self.devices[device.type] = Precision(self._torch, device)
        except Exception as error:
            copies = None
            self._skip(str(error) if isinstance(error, NotComparable) else self._failed(operator, error))
        self.spent += time.perf_counter() - began
        if copies is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self._raised(operator, copies, device, function, error)
            raise
        began = time.perf_counter()
        try:
            self._compare(Call(self, operator, function, args, kwargs, copies, device), result)
            self.compared += 1
        except NotComparable as error:
            self._skip(str(error))
        except Exception as error:
            self._skip(self._failed(operator, error))
        self.spent += time.perf_counter() - began
        return result

    def _device_of(self, tensors, kwargs):
        for tensor in tensors:
            if hasattr(type(tensor), "__tensor_flatten__"):
                self._skip("it has a tensor that wraps others (%s)" % type(tensor).__name__)
                return None
            device = tensor.device
            if device.type not in HOST:
                return device
        device = kwargs.get("device")
        if device is not None:
            device = self._torch.device(device)
            if device.type not in HOST:
                return device
        return None

    def _chosen(self, operator, tensors):
        """Whether there is time for this one: always for what was never seen, else within what the steps so far may cost."""
        signature = (
            operator.full_name,
            tuple([(t.shape, t.stride(), t.dtype, t.storage_offset() > 0) for t in tensors]),
        )
        seen = self.signatures.get(signature)
        if seen is None and len(self.signatures) >= MAX_SIGNATURES:
            return False
        if seen:
            affordable = self.spent < self._seconds * min(1.0, self.step / self._steps)
        else:
            affordable = self.spent < self._seconds * OVERDRAWN
        self.signatures[signature] = (seen or 0) + affordable
        if not affordable:
            self._skip("no time")
        return affordable

    def _written(self, operator, args, kwargs):
        return tensors_in(self._torch, operator.written(args, kwargs), [])

    def _skip(self, why):
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def _failed(self, operator, error):
        text = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:200])
        self.failures.setdefault(operator.full_name, text)
        return "the CPU cannot run it, or reading failed"

    def phase(self):
        if self._graph_task() != -1:
            return "backward"
        return "optimizer" if self.optimizing else "forward"

    # --- comparing -----------------------------------------------------------------------------------------------

    def _compare(self, call, result):
        pairs, run, reference = call.pairs(result)
        if all(pair.is_equal(self._torch) for pair in pairs):
            return
        wrong = call.judged(pairs, run, reference)
        if wrong is not None:
            self._found(call, wrong)

    def _found(self, call, wrong):
        key = (call.operator.full_name, wrong.kind, wrong.where)
        if key in self.findings:
            self.findings[key][1] += 1
            return
        helps, steady = call.tried_again()
        self._record(key, call, wrong, helps, steady)

    def _record(self, key, call, wrong, helps, steady, raised=""):
        operator = call.operator
        tensors, scalars = call.described()
        known = known_issue(Case(operator.name, wrong.kind, tensors, call.values(), helps, raised))
        phase = self.phase()
        finding = Finding(
            operator=operator.full_name, step=self.step, phase=phase, kind=wrong.kind, message=wrong.message, where=wrong.where,
            figures=wrong.figures, tensors=tensors, scalars=scalars, place=self._where.now(phase), known=known,
            contiguous_helps=helps, steady=steady,
            workaround=smallest_workaround(operator.name, wrong.kind, known, helps, steady),
        )  # fmt: skip
        self.findings[key] = [finding, 1]
        if len(self.findings) <= MAX_LINES:
            self._tell(finding)

    def _raised(self, operator, copies, device, function, error):
        """The device cannot do it. If the CPU can, that is a finding too."""
        try:
            text = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:300])
            key = (operator.full_name, "raises", "")
            if key in self.findings or "out of memory" in text:
                return
            args, kwargs, _ = copies.arguments()
            function(*args, **kwargs)
            call = Call(self, operator, function, copies._args, copies._kwargs, copies, device)
            self._record(key, call, Wrong("raises", text, ""), None, None, text)
        except Exception:
            pass  # neither can

    @property
    def generator(self):
        return self._generator
