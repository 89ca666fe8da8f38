"""Comparison of a device's results with the CPU's, and classification of the differences."""

from .operators import COUNTS, SELECTS
from .tolerance import distance

FACTOR = 6.0
"""The device's result may differ from the CPU's by this multiple of the change that rounding causes on the CPU."""
FIRST_RUNS, MORE_RUNS = 3, 14
"""A few runs are enough to accept correct results. Many more are made before an operator is reported."""
ACCUMULATION_SPACING = 2.0**-23
"""Sums are accumulated in float32, even by operators that multiply with fewer bits."""


class Mismatch(object):
    """One result that rounding does not explain."""

    def __init__(self, kind, message, where, **figures):
        self.kind = kind
        self.message = message
        self.where = where
        """The name of the result or argument: "result 0", "self"."""
        self.figures = figures

    def as_dict(self):
        return {"kind": self.kind, "message": self.message, "where": self.where, **self.figures}


class Pair(object):
    """One output of a call: from the device (read back), and from the CPU."""

    def __init__(self, where, device, reference, storage=None, views=()):
        self.where = where
        self.device = device
        self.reference = reference
        self.storage = storage
        """For memory that the call wrote to: the storage, whose `before` has the previous content."""
        self.views = views
        """Shape, strides and offset of each written tensor in the storage."""

    def is_equal(self, torch):
        one, other = self.device, self.reference
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


class Judge(object):
    """Compares the pairs of one call."""

    def __init__(self, torch, operator, pairs, noise, precision, terms, selection):
        self._torch = torch
        self._operator = operator
        self._pairs = pairs
        self._noise = noise
        self._precision = precision
        self._terms = terms
        """The number of terms of the longest sum in the call."""
        self._selection = selection
        """Checks selected indices by the elements at them; None for operators that select nothing."""

    def find_mismatch(self):
        """Return the first wrong result, or None."""
        torch = self._torch
        for index, pair in enumerate(self._pairs):
            if pair.is_equal(torch):
                continue
            mismatch = self._check_pair(index, pair)
            if mismatch is not None:
                return mismatch
        return None

    def _check_pair(self, index, pair):
        torch = self._torch
        device, reference = pair.device, pair.reference
        if device.dtype != reference.dtype:
            message = "%s on the device, %s on the CPU" % (device.dtype, reference.dtype)
            return Mismatch("dtype", message, pair.where)
        if device.shape != reference.shape:
            return self._check_shape(index, pair)
        if not (reference.is_floating_point() or reference.is_complex()):
            return self._check_integers(index, pair)
        difference = distance(torch, device, reference)
        if pair.storage is not None:
            outside = _find_outside(torch, pair)
            if bool((difference[outside] > 0).any()):
                return self._describe_outside(pair, difference, outside)
        size = reference.abs()
        size = (size.float() if size.element_size() < 4 else size).nan_to_num(nan=0.0, posinf=0.0)
        spacing = self._precision.spacing_for(self._operator.name, _real_dtype(torch, reference.dtype))
        if not bool((difference > 2 * spacing * size).any()):
            return None
        for runs in (FIRST_RUNS, MORE_RUNS):
            self._noise.add_runs(runs)
            tolerance = self._tolerance(index, size, spacing, torch.finfo(_real_dtype(torch, reference.dtype)).tiny)
            bad = difference > tolerance
            if not bool(bad.any()):
                return None
        return self._describe_values(pair, difference, tolerance, bad, size)

    def _tolerance(self, index, size, spacing, tiny):
        """Return for each element the difference that rounding explains: of the inputs, the result, and the terms of a long
        sum.
        """
        growth = 1.0 + 0.5 * self._terms**0.5 * min(1.0, ACCUMULATION_SPACING / spacing)
        max_change = self._noise.max_changes[index]
        tolerance = spacing * size if max_change is None else spacing * size + max_change
        tolerance = tolerance.mul_(FACTOR * growth).add_(2 * tiny)
        if self._noise.runs > FIRST_RUNS and max_change is not None and max_change.numel() > 1:
            # The changes of a sum's terms may have cancelled out by chance in every run, so similar elements count too.
            tolerance = tolerance.clamp_(min=float(max_change.square().mean().sqrt()) * growth)
        return tolerance

    def _check_shape(self, index, pair):
        self._noise.add_runs(FIRST_RUNS + MORE_RUNS)
        if tuple(pair.device.shape) in self._noise.shapes[index]:
            return None
        shapes = list(pair.device.shape), list(pair.reference.shape)
        if self._operator.name in COUNTS:
            message = "%s elements on the device, %s on the CPU" % _find_differing_sizes(*shapes)
            return Mismatch("count", message, pair.where, device_shape=shapes[0], cpu_shape=shapes[1])
        message = "shape %s on the device, %s on the CPU" % shapes
        return Mismatch("shape", message, pair.where, device_shape=shapes[0], cpu_shape=shapes[1])

    def _check_integers(self, index, pair):
        torch = self._torch
        device, reference = pair.device, pair.reference
        if pair.storage is not None:
            outside = _find_outside(torch, pair)
            if bool((device != reference)[outside].any()):
                return self._describe_outside(pair, (device != reference).float(), outside)
        if self._operator.name in SELECTS and self._selection is not None:
            return self._selection(pair)
        bad = device != reference
        if self._noise.has_floats:
            self._noise.add_runs(FIRST_RUNS + MORE_RUNS)
            changed = self._noise.max_changes[index]
            if changed is not None:
                bad = bad & ~changed
        if not bool(bad.any()):
            return None
        difference = (device.double() - reference.double()).abs()
        return self._describe_values(pair, difference, torch.zeros_like(difference), bad, reference.double().abs())

    def _describe_outside(self, pair, difference, outside):
        count = int((difference[outside] > 0).sum())
        message = "%d elements changed that the operator must not write to" % count
        return Mismatch("written-elsewhere", message, pair.where, wrong=count, of=int(outside.sum()))

    def _describe_values(self, pair, difference, tolerance, bad, size):
        torch = self._torch
        device, reference = pair.device, pair.reference
        count, total = int(bad.sum()), reference.numel()
        worst = int(
            torch.where(
                bad, difference / tolerance.clamp(min=1e-300 if difference.dtype == torch.float64 else 1e-37), -1
            ).argmax()
        )
        flat_device, flat_reference = device.reshape(-1), reference.reshape(-1)
        figures = {
            "wrong": count,
            "of": total,
            "max_abs": float(difference[bad].max()),
            "max_rel": float((difference[bad] / size[bad].clamp(min=1e-37)).max()),
            "tolerance": float(tolerance.reshape(-1)[worst]),
            "example": {
                "device": _to_number(flat_device[worst]),
                "cpu": _to_number(flat_reference[worst]),
                "at": worst,
            },
        }
        kind, message = self._classify(pair, bad)
        return Mismatch(kind, "%s (%d of %d elements)" % (message, count, total), pair.where, **figures)

    def _classify(self, pair, bad):
        torch = self._torch
        device, reference = pair.device[bad], pair.reference[bad]
        if pair.storage is not None:
            before = pair.storage.before[bad]
            if bool(((device == before) & (reference != before)).all()):
                return "not-written", "nothing was written"
        if not reference.is_floating_point() and not reference.is_complex():
            return (
                "integers",
                "integers differ from the CPU" if reference.dtype != torch.bool else "booleans differ from the CPU",
            )
        finite_device, finite_reference = torch.isfinite(device), torch.isfinite(reference)
        if bool((~finite_device & finite_reference).any()):
            return "not-finite", "NaN or infinity where the CPU has finite values"
        if bool((finite_device & ~finite_reference).any()):
            return "finite", "finite values where the CPU has NaN or infinity"
        if bool((device == 0).all()):
            return "zero", "zero where the CPU has non-zero values"
        return "values", "values differ from the CPU by more than rounding explains"


def _real_dtype(torch, dtype):
    return {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}.get(
        dtype, dtype
    )


def _find_outside(torch, pair):
    """Return a mask of the elements of a written storage that no written tensor covers."""
    covered = torch.ones(pair.reference.shape, dtype=torch.bool, device="cpu")
    for shape, stride, offset in pair.views:
        covered.as_strided(shape, stride, offset).fill_(False)
    return covered


def _find_differing_sizes(device, reference):
    """Return the first sizes in which two shapes differ."""
    for one, other in zip(device, reference):
        if one != other:
            return one, other
    return device, reference


def _to_number(element):
    value = element.item()
    return [value.real, value.imag] if isinstance(value, complex) else value
