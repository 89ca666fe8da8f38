"""What differs between a device's result and the CPU's, and what kind of wrong that is."""

from .operators import COUNTS, SELECTS
from .tolerance import distance

FACTOR = 6.0
"""How many times farther than rounding moved the CPU's result the device's may be from it."""
FIRST_RUNS, MORE_RUNS = 3, 14
"""A few to let honest results pass, many more before an operator is accused."""
ACCUMULATED = 2.0**-23
"""Sums are kept in float32, also by what multiplies in fewer bits."""


class Wrong(object):
    """One result that rounding does not explain."""

    def __init__(self, kind, message, where, **figures):
        self.kind = kind
        self.message = message
        self.where = where
        """Which result or argument: "result 0", "self"."""
        self.figures = figures

    def as_dict(self):
        return {"kind": self.kind, "message": self.message, "where": self.where, **self.figures}


class Pair(object):
    """One thing that a call leaves behind: on the device (read back), and on the CPU."""

    def __init__(self, where, device, reference, storage=None, views=()):
        self.where = where
        self.device = device
        self.reference = reference
        self.storage = storage
        """For memory that the call wrote to: the storage, whose `before` is what was there."""
        self.views = views
        """The written tensors in it: shape, strides and offset of each."""

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
        """How many terms the longest sum in it has."""
        self._selection = selection
        """Checks chosen places by what lies there; None for operators that choose nothing."""

    def wrong(self):
        """The first result that is wrong, or None."""
        torch = self._torch
        for place, pair in enumerate(self._pairs):
            if pair.is_equal(torch):
                continue
            found = self._of_pair(place, pair)
            if found is not None:
                return found
        return None

    def _of_pair(self, place, pair):
        torch = self._torch
        device, reference = pair.device, pair.reference
        if device.dtype != reference.dtype:
            message = "%s on the device, %s on the CPU" % (device.dtype, reference.dtype)
            return Wrong("dtype", message, pair.where)
        if device.shape != reference.shape:
            return self._of_shape(place, pair)
        if not (reference.is_floating_point() or reference.is_complex()):
            return self._of_integers(place, pair)
        apart = distance(torch, device, reference)
        if pair.storage is not None:
            outside = _outside(torch, pair)
            if bool((apart[outside] > 0).any()):
                return self._outside_its_tensor(pair, apart, outside)
        size = reference.abs()
        size = (size.float() if size.element_size() < 4 else size).nan_to_num(nan=0.0, posinf=0.0)
        spacing = self._precision.of(self._operator.name, _real(torch, reference.dtype))
        if not bool((apart > 2 * spacing * size).any()):
            return None
        for runs in (FIRST_RUNS, MORE_RUNS):
            self._noise.widen(runs)
            tolerance = self._tolerance(place, size, spacing, torch.finfo(_real(torch, reference.dtype)).tiny)
            bad = apart > tolerance
            if not bool(bad.any()):
                return None
        return self._of_values(pair, apart, tolerance, bad, size)

    def _tolerance(self, place, size, spacing, tiny):
        """For each element: what rounding of the inputs and of the result explains, and of a long sum's parts."""
        growth = 1.0 + 0.5 * self._terms**0.5 * min(1.0, ACCUMULATED / spacing)
        moved = self._noise.moved[place]
        tolerance = spacing * size if moved is None else spacing * size + moved
        tolerance = tolerance.mul_(FACTOR * growth).add_(2 * tiny)
        if self._noise.runs > FIRST_RUNS and moved is not None and moved.numel() > 1:
            # By chance a sum's parts may have moved against each other each time: what its like moved by counts too.
            tolerance = tolerance.clamp_(min=float(moved.square().mean().sqrt()) * growth)
        return tolerance

    def _of_shape(self, place, pair):
        self._noise.widen(FIRST_RUNS + MORE_RUNS)
        if tuple(pair.device.shape) in self._noise.shapes[place]:
            return None
        shapes = list(pair.device.shape), list(pair.reference.shape)
        if self._operator.name in COUNTS:
            message = "%s elements where the CPU finds %s" % _counts(*shapes)
            return Wrong("count", message, pair.where, device_shape=shapes[0], cpu_shape=shapes[1])
        message = "shape %s on the device, %s on the CPU" % shapes
        return Wrong("shape", message, pair.where, device_shape=shapes[0], cpu_shape=shapes[1])

    def _of_integers(self, place, pair):
        torch = self._torch
        device, reference = pair.device, pair.reference
        if pair.storage is not None:
            outside = _outside(torch, pair)
            if bool((device != reference)[outside].any()):
                return self._outside_its_tensor(pair, (device != reference).float(), outside)
        if self._operator.name in SELECTS and self._selection is not None:
            return self._selection(pair)
        bad = device != reference
        if self._noise.has_floats:
            self._noise.widen(FIRST_RUNS + MORE_RUNS)
            flipped = self._noise.moved[place]
            if flipped is not None:
                bad = bad & ~flipped
        if not bool(bad.any()):
            return None
        apart = (device.double() - reference.double()).abs()
        return self._of_values(pair, apart, torch.zeros_like(apart), bad, reference.double().abs())

    def _outside_its_tensor(self, pair, apart, outside):
        count = int((apart[outside] > 0).sum())
        message = "%d elements of its memory changed that it was not to write to" % count
        return Wrong("written-elsewhere", message, pair.where, wrong=count, of=int(outside.sum()))

    def _of_values(self, pair, apart, tolerance, bad, size):
        torch = self._torch
        device, reference = pair.device, pair.reference
        count, total = int(bad.sum()), reference.numel()
        worst = int(
            torch.where(
                bad, apart / tolerance.clamp(min=1e-300 if apart.dtype == torch.float64 else 1e-37), -1
            ).argmax()
        )
        flat_device, flat_reference = device.reshape(-1), reference.reshape(-1)
        figures = {
            "wrong": count,
            "of": total,
            "max_abs": float(apart[bad].max()),
            "max_rel": float((apart[bad] / size[bad].clamp(min=1e-37)).max()),
            "tolerance": float(tolerance.reshape(-1)[worst]),
            "example": {"device": _number(flat_device[worst]), "cpu": _number(flat_reference[worst]), "at": worst},
        }
        kind, message = self._kind(pair, bad)
        return Wrong(kind, "%s (%d of %d elements)" % (message, count, total), pair.where, **figures)

    def _kind(self, pair, bad):
        torch = self._torch
        device, reference = pair.device[bad], pair.reference[bad]
        if pair.storage is not None:
            before = pair.storage.before[bad]
            if bool(((device == before) & (reference != before)).all()):
                return "not-written", "nothing was written"
        if not reference.is_floating_point() and not reference.is_complex():
            return (
                "integers",
                "other integers than on the CPU" if reference.dtype != torch.bool else "other truth values",
            )
        finite_device, finite_reference = torch.isfinite(device), torch.isfinite(reference)
        if bool((~finite_device & finite_reference).any()):
            return "not-finite", "NaN or infinite where the CPU has numbers"
        if bool((finite_device & ~finite_reference).any()):
            return "finite", "numbers where the CPU has NaN or infinity"
        if bool((device == 0).all()):
            return "zero", "zero where the CPU has clear values"
        return "values", "other values than rounding explains"


def _real(torch, dtype):
    return {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}.get(
        dtype, dtype
    )


def _outside(torch, pair):
    """Of a written storage: the elements that no written tensor covers."""
    covered = torch.ones(pair.reference.shape, dtype=torch.bool, device="cpu")
    for shape, stride, offset in pair.views:
        covered.as_strided(shape, stride, offset).fill_(False)
    return covered


def _counts(device, reference):
    """Of two shapes, the numbers that differ."""
    for one, other in zip(device, reference):
        if one != other:
            return one, other
    return device, reference


def _number(element):
    value = element.item()
    return [value.real, value.imag] if isinstance(value, complex) else value
