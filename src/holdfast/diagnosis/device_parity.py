"""Whether the same few steps give the same values: twice on a device, and on the CPU.

Checking a device operator by operator synchronizes after each operator, and so hides race conditions. Whole steps do not
synchronize. The allowed difference between two correct runs is not assumed. It is measured with runs on the CPU whose
arithmetic is perturbed by rounding (`noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

FACTOR = 8.0
"""The tolerance, as a multiple of the difference that rounding makes."""
MIN_VALUE = 1e-6
"""Relative to the size of a value: a smaller difference never counts."""

MIN_RELATIVE_NORM = 1e-3
"""As a fraction of the norm of the largest tensor: a smaller norm counts as this large."""
MAX_FEW = 0.05
"""One wrong loss is enough. Of the other values of a step, more than this fraction must be wrong: if a gradient is nothing
but rounding error, Adam turns it into full steps in random directions."""
UNKNOWN_TOLERANCE = 1e-2
"""Relative to the size of a value: the tolerance if the effect of rounding is unknown."""


@dataclass(frozen=True)
class StepRecord:
    """One step, as recorded by the probe (`op_check/step_recorder.py`)."""

    step: int
    losses: Sequence[float]
    gradients: Mapping[str, Sequence[float]]
    """Tensor, named by its parameter group and its index in the optimizer -> norm and sum."""
    weights: Mapping[str, Sequence[float]]
    """The weights after the step."""

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> StepRecord:
        """Read a decoded line of JSON, in which NaN and the infinities are strings."""

        def numbers(values: Iterable[Any]) -> tuple[float, ...]:
            return tuple(float(value) for value in values)

        return cls(
            step=line["step"],
            losses=numbers(line["losses"]),
            gradients={name: numbers(values) for name, values in line["gradients"].items()},
            weights={name: numbers(values) for name, values in line["weights"].items()},
        )

    def figures(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield (kind, name, value, the size that differences are relative to)."""
        for place, loss in enumerate(self.losses):
            yield "loss", str(place), loss, abs(loss)
        for kind, tensors in (("gradient", self.gradients), ("weight", self.weights)):
            # A gradient that consists only of rounding errors has no meaningful size.
            largest = max((norm for norm, _ in tensors.values() if math.isfinite(norm)), default=0.0)
            for name, (norm, total) in tensors.items():
                size = max(norm, MIN_RELATIVE_NORM * largest)
                yield kind, f"{name} norm", norm, size
                yield kind, f"{name} sum", total, size


@dataclass(frozen=True)
class Disagreement:
    step: int
    kind: str
    """"loss", "gradient" or "weight"."""
    name: str
    """The index of the loss, or the name of the tensor followed by "norm" or "sum"."""
    one: float
    other: float
    tolerance: float

    @property
    def times(self) -> float:
        """The difference as a multiple of the tolerance."""
        apart = abs(self.one - self.other)
        return apart / self.tolerance if self.tolerance and math.isfinite(apart) else math.inf


@dataclass(frozen=True)
class StepAgreement:
    """The result of comparing two runs on the device with each other and with runs on the CPU."""

    message: str
    races: Sequence[Disagreement] = field(default=())
    """Differences between the two runs on the device."""
    wrong: Sequence[Disagreement] = field(default=())
    """Differences between the device and the CPU."""
    compared: int = 0
    """Number of compared values."""

    @property
    def agrees(self) -> bool:
        return not self.races and not self.wrong


def compare_steps(
    a: Sequence[StepRecord], b: Sequence[StepRecord], noise: Sequence[Sequence[StepRecord]]
) -> list[Disagreement]:
    """Return the values of `a` that differ from `b` by more than rounding explains.

    They are ordered by step; within a step losses come first, then the largest differences. `noise` contains correct runs of
    the same steps that differ only by rounding: their differences are tolerated. With fewer than two of them, only obvious
    differences are reported.
    """
    found = []
    for one, other in zip(a, b, strict=False):
        tolerances = _compute_tolerances(
            other, [record for run in noise for record in run if record.step == other.step]
        )
        figures_of_a = {(kind, name): value for kind, name, value, _ in one.figures()}
        of_step = []
        for kind, name, value, _ in other.figures():
            seen = figures_of_a.get((kind, name), math.nan)
            tolerance = tolerances.get((kind, name), math.inf)
            if _distance(seen, value) > tolerance:
                of_step.append(Disagreement(other.step, kind, name, seen, value, tolerance))
        found.extend(sorted(of_step, key=lambda it: (it.kind != "loss", -it.times)))
    return found


def step_agreement(
    first: Sequence[StepRecord],
    second: Sequence[StepRecord],
    cpu: Sequence[StepRecord],
    noise: Sequence[Sequence[StepRecord]],
) -> StepAgreement:
    """Compare two runs on the device, the run on the CPU, and runs on the CPU perturbed by rounding. `cpu` may be empty."""
    steps = min(len(first), len(second))
    if not steps:
        return StepAgreement("no steps were recorded on the device")
    references = [cpu, *noise] if cpu else noise
    races = _drop_steps_with_few(compare_steps(first, second, references), first)
    wrong = _drop_steps_with_few(compare_steps(first, cpu, references), cpu) or _drop_steps_with_few(
        compare_steps(second, cpu, references), cpu
    )
    compared = sum(1 for record in first[:steps] for _ in record.figures())
    if races:
        at = races[0]
        message = (
            f"the same steps gave different results when repeated, starting at step {at.step} ({at.kind} {at.name}: {at.one:.6g}, "
            f"then {at.other:.6g}): the device does not synchronize its own work. Try without non_blocking copies"
        )
    elif wrong:
        at = wrong[0]
        message = (
            f"the device gives the same results when repeated, but they differ from the CPU, starting at step {at.step} ({at.kind} "
            f"{at.name}: {at.one:.6g}, on the CPU {at.other:.6g}). If every operator agrees on its own, results are used before "
            "they are complete: try without non_blocking copies"
        )
    elif not cpu:
        message = f"{steps} steps gave the same results when repeated on the device; they were not run on the CPU"
    else:
        message = f"{steps} steps agree within rounding: between two runs on the device, and with the CPU"
    return StepAgreement(message, tuple(races), tuple(wrong), compared)


def _drop_steps_with_few(found: Sequence[Disagreement], records: Sequence[StepRecord]) -> list[Disagreement]:
    """Drop the differences of steps in which only a few values differ and none of them is a loss."""
    figures = {record.step: sum(1 for _ in record.figures()) for record in records}
    off = [disagreement.step for disagreement in found]
    losses = {disagreement.step for disagreement in found if disagreement.kind == "loss"}
    return [it for it in found if it.step in losses or off.count(it.step) > MAX_FEW * figures[it.step]]


def _distance(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    apart = abs(one - other)
    return apart if math.isfinite(apart) else math.inf


def _compute_tolerances(record: StepRecord, references: Sequence[StepRecord]) -> dict[tuple[str, str], float]:
    """Return the tolerance of each value. One value may be unchanged by chance, so values of the same kind count too."""
    moves: dict[tuple[str, str], float] = {}
    shares: dict[str, list[float]] = {}
    runs = [{(kind, name): value for kind, name, value, _ in run.figures()} for run in references]
    figures = list(record.figures())
    for kind, name, _, size in figures:
        values = [run[kind, name] for run in runs if (kind, name) in run]
        move = max(values) - min(values) if len(values) > 1 else UNKNOWN_TOLERANCE * size / FACTOR
        moves[kind, name] = move
        if size and math.isfinite(move):
            shares.setdefault(kind, []).append(move / size)
    typical = {kind: sorted(values)[len(values) // 2] for kind, values in shares.items()}
    # There are few losses, and a few runs may agree on one by chance, so the spread of the gradients applies to them too.
    typical["loss"] = max(typical.get("loss", 0.0), typical.get("gradient", 0.0))
    return {
        (kind, name): FACTOR * max(moves[kind, name], typical.get(kind, 0.0) * size) + MIN_VALUE * size
        for kind, name, _, size in figures
    }
