"""Whether the same few steps came to the same figures: twice on a device, and on the CPU.

Comparing a device operator by operator waits for each of them, and so hides races. Whole steps do not wait. How far two
honest runs may be apart is not assumed but taken from runs on the CPU whose arithmetic was moved by rounding (`noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

FACTOR = 8.0
"""How many times farther than rounding moved a figure another honest run may be."""
MIN_VALUE = 1e-6
"""Relative to a figure's own size: what is never called a difference."""

NOTHING = 1e-3
"""Of the largest tensor's norm: a smaller one counts as this large."""
FEW = 0.05
"""A loss that is off says enough. Of the other figures of a step more than this share has to be: where a gradient is nothing
but rounding, Adam makes whole steps of it, in any direction."""
UNKNOWN = 1e-2
"""Relative to a figure's size: the tolerance where nothing is known of rounding."""


@dataclass(frozen=True)
class StepRecord:
    """One step, as the child wrote it (`op_check/step_recorder.py`)."""

    step: int
    losses: Sequence[float]
    gradients: Mapping[str, Sequence[float]]
    """Tensor, named by its group and place in the optimizer -> norm and sum."""
    weights: Mapping[str, Sequence[float]]
    """After the step."""

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> StepRecord:
        """From a decoded line of JSON, where NaN and the infinities are words."""

        def numbers(values: Iterable[Any]) -> tuple[float, ...]:
            return tuple(float(value) for value in values)

        return cls(
            step=line["step"],
            losses=numbers(line["losses"]),
            gradients={name: numbers(values) for name, values in line["gradients"].items()},
            weights={name: numbers(values) for name, values in line["weights"].items()},
        )

    def figures(self) -> Iterator[tuple[str, str, float, float]]:
        """(kind, name, figure, the size that it is to be seen against)."""
        for place, loss in enumerate(self.losses):
            yield "loss", str(place), loss, abs(loss)
        for kind, tensors in (("gradient", self.gradients), ("weight", self.weights)):
            # A gradient that is zero but for rounding has no size of its own.
            largest = max((norm for norm, _ in tensors.values() if math.isfinite(norm)), default=0.0)
            for name, (norm, total) in tensors.items():
                size = max(norm, NOTHING * largest)
                yield kind, f"{name} norm", norm, size
                yield kind, f"{name} sum", total, size


@dataclass(frozen=True)
class Disagreement:
    step: int
    kind: str
    """loss, gradient or weight."""
    name: str
    """Which: the number of the loss, or the tensor and whether its norm or its sum."""
    one: float
    other: float
    tolerance: float

    @property
    def times(self) -> float:
        """How many times the tolerance they are apart."""
        apart = abs(self.one - self.other)
        return apart / self.tolerance if self.tolerance and math.isfinite(apart) else math.inf


@dataclass(frozen=True)
class StepAgreement:
    """What two runs on the device and those on the CPU say together."""

    message: str
    races: Sequence[Disagreement] = field(default=())
    """Where the device's two runs are apart."""
    wrong: Sequence[Disagreement] = field(default=())
    """Where the device is apart from the CPU."""
    compared: int = 0
    """Figures."""

    @property
    def agrees(self) -> bool:
        return not self.races and not self.wrong


def compare_steps(
    a: Sequence[StepRecord], b: Sequence[StepRecord], noise: Sequence[Sequence[StepRecord]]
) -> list[Disagreement]:
    """Figures of `a` that are farther from `b` than rounding explains, the first step first; of a step losses, then the worst.

    `noise` are honest runs of the same steps that differ by rounding: how far they are apart is what is allowed. With fewer
    than two of them, only what is plain to see is told.
    """
    found = []
    for one, other in zip(a, b, strict=False):
        tolerances = _tolerances(other, [record for run in noise for record in run if record.step == other.step])
        mine = {(kind, name): value for kind, name, value, _ in one.figures()}
        of_step = []
        for kind, name, value, _ in other.figures():
            seen = mine.get((kind, name), math.nan)
            tolerance = tolerances.get((kind, name), math.inf)
            if _apart(seen, value) > tolerance:
                of_step.append(Disagreement(other.step, kind, name, seen, value, tolerance))
        found.extend(sorted(of_step, key=lambda it: (it.kind != "loss", -it.times)))
    return found


def step_agreement(
    first: Sequence[StepRecord],
    second: Sequence[StepRecord],
    cpu: Sequence[StepRecord],
    noise: Sequence[Sequence[StepRecord]],
) -> StepAgreement:
    """The device's two runs, the CPU's, and the CPU's with its arithmetic moved by rounding. `cpu` may be empty."""
    steps = min(len(first), len(second))
    if not steps:
        return StepAgreement("no steps were recorded on the device")
    honest = [cpu, *noise] if cpu else noise
    races = _more_than_few(compare_steps(first, second, honest), first)
    wrong = _more_than_few(compare_steps(first, cpu, honest), cpu) or _more_than_few(
        compare_steps(second, cpu, honest), cpu
    )
    compared = sum(1 for record in first[:steps] for _ in record.figures())
    if races:
        at = races[0]
        message = (
            f"the same steps came out differently when they were repeated, from step {at.step} on ({at.kind} {at.name}: {at.one:.6g}, "
            f"then {at.other:.6g}): the device does not wait for its own work. Try without non_blocking copies"
        )
    elif wrong:
        at = wrong[0]
        message = (
            f"the device repeats itself but is not where the CPU is, from step {at.step} on ({at.kind} {at.name}: {at.one:.6g}, on the "
            f"CPU {at.other:.6g}). If each operator by itself agrees, work is used before it is done: try without non_blocking copies"
        )
    elif not cpu:
        message = f"{steps} steps repeat themselves on the device; they were not run on the CPU"
    else:
        message = f"{steps} steps agree: twice on the device, and with the CPU, within what rounding does"
    return StepAgreement(message, tuple(races), tuple(wrong), compared)


def _more_than_few(found: Sequence[Disagreement], records: Sequence[StepRecord]) -> list[Disagreement]:
    """Without those of steps in which only a few figures are off, none of them a loss."""
    figures = {record.step: sum(1 for _ in record.figures()) for record in records}
    off = [disagreement.step for disagreement in found]
    losses = {disagreement.step for disagreement in found if disagreement.kind == "loss"}
    return [it for it in found if it.step in losses or off.count(it.step) > FEW * figures[it.step]]


def _apart(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    apart = abs(one - other)
    return apart if math.isfinite(apart) else math.inf


def _tolerances(record: StepRecord, honest: Sequence[StepRecord]) -> dict[tuple[str, str], float]:
    """How far each figure may be. One figure may by chance not have moved: what its like moved by counts too."""
    moves: dict[tuple[str, str], float] = {}
    shares: dict[str, list[float]] = {}
    runs = [{(kind, name): value for kind, name, value, _ in run.figures()} for run in honest]
    figures = list(record.figures())
    for kind, name, _, size in figures:
        values = [run[kind, name] for run in runs if (kind, name) in run]
        move = max(values) - min(values) if len(values) > 1 else UNKNOWN * size / FACTOR
        moves[kind, name] = move
        if size and math.isfinite(move):
            shares.setdefault(kind, []).append(move / size)
    usual = {kind: sorted(values)[len(values) // 2] for kind, values in shares.items()}
    # There are few losses, and a few runs may agree on one by chance: what gradients move by is a measure for them too.
    usual["loss"] = max(usual.get("loss", 0.0), usual.get("gradient", 0.0))
    return {
        (kind, name): FACTOR * max(moves[kind, name], usual.get(kind, 0.0) * size) + MIN_VALUE * size
        for kind, name, _, size in figures
    }
