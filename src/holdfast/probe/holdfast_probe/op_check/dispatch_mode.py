"""The dispatch mode: run every device operator on the device, and again on the CPU from the same memory.

The training gets the device's own result, so the check does not change it. Each operator is compared using the inputs that
it really had, so an error of one operator is not attributed to the next.
"""

import time

from ..devices import is_accelerator
from .call import Call
from .compare import Mismatch
from .cpu_mirror import CpuMirror, NotComparable, tensors_in
from .findings import Finding, choose_workaround
from .known_issues import Case, find_known_issue
from .operators import Operator
from .precision import Precision
from .source_location import SourceLocation

MAX_LINES = 200
MAX_SIGNATURES = 20000
MAX_OVERDRAFT = 2.0
"""New signatures are compared even beyond the time budget, up to this multiple of it."""


def dispatch_mode(torch, checker):
    """Return a mode that passes every operator to the checker. A function, because the base class is in the user's torch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class OpCheckMode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if checker.off:
                return function(*args, **(kwargs or {}))
            return checker.handle_call(function, args, kwargs or {})

    return OpCheckMode()


class OpChecker(object):
    def __init__(self, torch, report, seconds, steps):
        """`report` is called with each new finding."""
        self._torch = torch
        self._report = report
        self._seconds, self._steps = seconds, steps
        self.off = False
        self.step = 1
        """The step that is being computed."""
        self.optimizing = False
        self.calls = self.compared = 0
        self.spent = 0.0
        self.signatures = {}
        """Name and tensors of a call -> how often it was compared."""
        self.skipped = {}
        """The reason why device calls were not compared -> how many."""
        self.findings = {}
        self.failures = {}
        self.devices = {}
        self._operators = {}
        self._graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._generator = torch.Generator("cpu").manual_seed(20)
        self._source_location = SourceLocation(torch)
        self._source_location.record_forward()

    # --- which calls ---------------------------------------------------------------------------------------------

    def handle_call(self, function, args, kwargs):
        operator = self._operators.get(function)
        if operator is None:
            operator = self._operators[function] = Operator(self._torch, function)
        if operator.skip_reason is not None:
            return function(*args, **kwargs)
        tensors = tensors_in(self._torch, (args, kwargs), [])
        device = self._find_device(tensors, kwargs)
        if device is None:
            return function(*args, **kwargs)
        self.calls += 1
        began = time.perf_counter()
        try:
            is_chosen = self._should_compare(operator, tensors)
            copies = (
                CpuMirror(self._torch, args, kwargs, self._find_written(operator, args, kwargs)) if is_chosen else None
            )
            if is_chosen and device.type not in self.devices:
                self.devices[device.type] = Precision(self._torch, device)
        except Exception as error:
            copies = None
            self._skip(str(error) if isinstance(error, NotComparable) else self._record_failure(operator, error))
        self.spent += time.perf_counter() - began
        if copies is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self._handle_error(operator, copies, device, function, error)
            raise
        began = time.perf_counter()
        try:
            self._compare(Call(self, operator, function, args, kwargs, copies, device), result)
            self.compared += 1
        except NotComparable as error:
            self._skip(str(error))
        except Exception as error:
            self._skip(self._record_failure(operator, error))
        self.spent += time.perf_counter() - began
        return result

    def _find_device(self, tensors, kwargs):
        for tensor in tensors:
            if hasattr(type(tensor), "__tensor_flatten__"):
                self._skip("it has a tensor subclass that wraps other tensors (%s)" % type(tensor).__name__)
                return None
            device = tensor.device
            if is_accelerator(device):
                return device
        device = kwargs.get("device")
        if device is not None:
            device = self._torch.device(device)
            if is_accelerator(device):
                return device
        return None

    def _should_compare(self, operator, tensors):
        """Return whether there is time to compare this call. A new signature may exceed the time budget; a known one must
        fit into the share of the steps so far.
        """
        signature = (
            operator.full_name,
            tuple([(t.shape, t.stride(), t.dtype, t.storage_offset() > 0) for t in tensors]),
        )
        count = self.signatures.get(signature)
        if count is None and len(self.signatures) >= MAX_SIGNATURES:
            return False
        if count:
            is_affordable = self.spent < self._seconds * min(1.0, self.step / self._steps)
        else:
            is_affordable = self.spent < self._seconds * MAX_OVERDRAFT
        self.signatures[signature] = (count or 0) + is_affordable
        if not is_affordable:
            self._skip("no time")
        return is_affordable

    def _find_written(self, operator, args, kwargs):
        return tensors_in(self._torch, operator.written_arguments(args, kwargs), [])

    def _skip(self, reason):
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _record_failure(self, operator, error):
        text = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:200])
        self.failures.setdefault(operator.full_name, text)
        return "the CPU cannot run it, or reading its tensors failed"

    def phase(self):
        if self._graph_task() != -1:
            return "backward"
        return "optimizer" if self.optimizing else "forward"

    # --- comparing -----------------------------------------------------------------------------------------------

    def _compare(self, call, result):
        pairs, run, reference = call.pairs(result)
        if all(pair.is_equal(self._torch) for pair in pairs):
            return
        mismatch = call.judge(pairs, run, reference)
        if mismatch is not None:
            self._handle_mismatch(call, mismatch)

    def _handle_mismatch(self, call, mismatch):
        key = (call.operator.full_name, mismatch.kind, mismatch.where)
        if key in self.findings:
            self.findings[key][1] += 1
            return
        contiguous_helps, steady = call.retry()
        self._record(key, call, mismatch, contiguous_helps, steady)

    def _record(self, key, call, mismatch, contiguous_helps, steady, raised=""):
        operator = call.operator
        tensors, scalars = call.describe()
        known = find_known_issue(
            Case(operator.name, mismatch.kind, tensors, call.cpu_arguments(), contiguous_helps, raised)
        )
        phase = self.phase()
        finding = Finding(
            operator=operator.full_name, step=self.step, phase=phase, kind=mismatch.kind, message=mismatch.message, where=mismatch.where,
            figures=mismatch.figures, tensors=tensors, scalars=scalars, place=self._source_location.find(phase), known=known,
            contiguous_helps=contiguous_helps, steady=steady,
            workaround=choose_workaround(operator.name, mismatch.kind, known, contiguous_helps, steady),
        )  # fmt: skip
        self.findings[key] = [finding, 1]
        if len(self.findings) <= MAX_LINES:
            self._report(finding)

    def _handle_error(self, operator, copies, device, function, error):
        """Record a finding if an operator raises on the device but not on the CPU."""
        try:
            text = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:300])
            key = (operator.full_name, "raises", "")
            if key in self.findings or "out of memory" in text:
                return
            args, kwargs, _ = copies.arguments()
            function(*args, **kwargs)
            call = Call(self, operator, function, copies._args, copies._kwargs, copies, device)
            self._record(key, call, Mismatch("raises", text, ""), None, None, text)
        except Exception:
            pass  # the CPU raises too

    @property
    def generator(self):
        return self._generator
