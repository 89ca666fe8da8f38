"""The loss stands far above where it began, and stays there.

**What it means.** The model is much worse than the untrained one was. A single spike passes; this does not.

**Why it happens.** A learning rate that is too high (or warm-up that is missing), inputs that are not normalised, gradients that
are not cleared between steps, a sign that is wrong in the loss, half precision that overflows.

**What to do.** Go back to a checkpoint from before it rose. Divide the learning rate by ten, add warm-up, clip gradients.

**What it needs to see.** 50 steps in a row with every loss more than 10 times the highest of the first 20, and the newest 100
times (1000 times where no data loader is seen). Or a leap in the first 20 steps, as with a rate that is far too high: 100 steps in a
row with every loss more than 5 times the very first one, and the newest 10 times. It is fatal only beyond a million times, while it still rises from ten steps to
the next ten and the gradients have grown a thousandfold too.

**When it stays silent.** On losses that go below zero (policy gradients, densities), where several optimizers step (adversarial
training) or one takes over from another, on spikes that pass, and while the loss is coming down again: it may have been
given a further term. A leap counts only from a first loss of 0.1 or more: one that begins at nearly nothing (a student that is
a copy of its teacher) can only rise. Nor does one count in a training of Ultralytics: before a detector proposes boxes none is matched
with an object, and its losses of boxes, which come later, are no divergence.

Sources: the public lists of training faults (learning rate 100 times off, inputs not normalised, no zero_grad: SO-60335387).
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.losses import EARLY, LEAP
from holdfast.diagnosis.loss_semantics import HANDOVER, has_single_optimizer, is_detector, is_positive, uses_loader
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.suggestions import suggest_earlier_checkpoint
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.series import note, steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.aggregators.losses import Recent
    from holdfast.diagnosis.run_state import AttemptState, RunState

LIMITS = {
    "steps": 50,
    "times": 100,
    "times_without_a_loader": 1000,
    "times_of_proof": 1e6,
    "steps_after_a_leap": 100,
    "times_after_a_leap": 10,
    "least_first_loss": 0.1,
}
STRETCHES = 5
GRADIENTS_GROWN = 1e3


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    losses = attempt.losses
    limits = state.tuned("loss-diverging", LIMITS)
    if losses.far_steps < limits["steps"] and losses.left_steps < limits["steps_after_a_leap"]:
        return None
    if not is_positive(attempt) or not has_single_optimizer(attempt):
        return None
    return _far_off(state, limits) or _leapt(state, limits)


def _far_off(state: RunState, limits: Mapping[str, float]) -> Finding | None:
    attempt = state.attempt
    losses = attempt.losses
    if losses.far_steps < limits["steps"]:
        return None
    stretch = _newest(attempt, int(min(losses.far_steps, 4 * limits["steps"])))
    level, began = _level(stretch), max(losses.early)
    times = level / began
    if times < limits["times" if uses_loader(attempt) else "times_without_a_loader"] or _comes_down(stretch):
        return None
    proven = times > limits["times_of_proof"] and _rises(stretch) and _gradients_grew(attempt)
    said = f"every one of the last {losses.far_steps} losses is more than 10 times the highest of the first {EARLY}"
    return _finding(state, level, began, losses.far_steps, said, proven=proven)


def _leapt(state: RunState, limits: Mapping[str, float]) -> Finding | None:
    attempt = state.attempt
    losses, began = attempt.losses, attempt.loss.first
    if losses.left_steps < limits["steps_after_a_leap"] or losses.left_after >= EARLY:
        return None
    stretch = _newest(attempt, losses.left_steps)
    level = _level(stretch)
    if began is None or began < limits["least_first_loss"] or level < limits["times_after_a_leap"] * began:
        return None
    if _resumed(attempt) or is_detector(attempt) or _comes_down(stretch):
        return None
    said = f"every one of the last {losses.left_steps} losses is more than {LEAP:g} times the very first"
    return _finding(state, level, began, losses.left_steps, said, proven=False)


def _finding(state: RunState, level: float, began: float, steps: int, said: str, *, proven: bool) -> Finding:
    since = state.attempt.last_step - steps + 1
    return Finding(
        rule="loss-diverging",
        severity="fatal" if proven else "warn",
        message=f"The loss is {level / began:.3g} times what it was at the start ({level:.4g} against {began:.4g}) and has been far "
        f"above it since step {since}" + (", still rising: this does not come back." if proven else "."),
        evidence=[said, f"the newest are about {level:.4g}, at the start it was {began:.4g}"],
        remedies=[
            *suggest_earlier_checkpoint(state, since),
            "divide the learning rate by ten, or add warm-up",
            "clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            "check that inputs are normalised and that gradients are cleared in each step",
        ],
        confidence="proven" if proven else "likely",
        corrupt_from=since,
    )


def _resumed(attempt: AttemptState) -> bool:
    return attempt.started.resume is not None and attempt.started.resume.checkpoint is not None


def _level(stretch: list[Recent]) -> float:
    return statistics.median(point.mean for point in stretch[-10:])


def _newest(attempt: AttemptState, wanted: int) -> list[Recent]:
    """The newest losses that stand for so many steps, oldest first."""
    newest: list[Recent] = []
    for point in reversed(attempt.losses.recent):
        if wanted <= 0:
            break
        wanted -= point.n
        newest.append(point)
    return newest[::-1]


def _comes_down(stretch: list[Recent]) -> bool:
    half = len(stretch) // 2
    if half < 5:
        return False
    before, after = stretch[:half], stretch[half:]
    return statistics.median(p.mean for p in after) < 0.7 * statistics.median(p.mean for p in before)


def _rises(stretch: list[Recent]) -> bool:
    """From each fifth of the stretch to the next."""
    each = len(stretch) // STRETCHES
    if each < 2:
        return False
    means = [statistics.fmean(p.mean for p in stretch[n * each : (n + 1) * each]) for n in range(STRETCHES)]
    return all(later > 1.5 * earlier for earlier, later in pairwise(means))


def _gradients_grew(attempt: AttemptState) -> bool:
    points = attempt.gradients.norms.points
    if len(points) < 20:
        return False
    at_first = max(point.high for point in points[:5])
    return statistics.fmean(point.mean for point in points[-3:]) > GRADIENTS_GROWN * at_first > 0.0


GROWS = [1.0 * 1.3**n for n in range(140)]
WANDERS = [2.0 + 0.1 * (n % 5) for n in range(40)]
RULE = Rule(
    id="loss-diverging",
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case(
            "rises without end, and its gradients with it", [*started(), *trains(), *steps(*GROWS, norm=GROWS)], "fatal"
        ),
        Case("rises without end, gradients unseen", [*started(), *steps(*GROWS)], "warn"),
        Case(
            "blown up and stays there",
            [*started(), *steps(*WANDERS, *[900.0 + 50 * (n % 7) for n in range(80)], loader=True)],
            "warn",
        ),
        Case(
            "leaps in the first steps: a rate far too high",
            [*started(), *steps(49.9, 222.6, 912.9, *[900.0 + 90 * (n % 9) for n in range(120)])],
            "warn",
        ),
        Case(
            "a leap that is made good",
            [*started(), *steps(2.3, 9.0, *[90.0 * 0.97**n for n in range(150)])],
            None,
        ),
        Case(
            "a first batch that was easy",
            [*started(), *steps(0.2, *[2.3 + 3 * (n % 7) * 0.4 - 1.5 for n in range(150)])],
            None,
        ),
        Case("a spike that passes", [*started(), *steps(*WANDERS, *[5e4] * 30, *WANDERS, loader=True)], None),
        Case(
            "a further term that is being learned",
            [*started(), *steps(*WANDERS, *[4000.0 * 0.97**n for n in range(90)], loader=True)],
            None,
        ),
        Case(
            "returns grow while a policy learns",
            [*started(), *steps(*[14.0 + n for n in range(30)], *[9000.0 + 90 * (n % 9) for n in range(200)])],
            None,
        ),
        Case("below zero", [*started(), *steps(-1.0, *WANDERS, *[9e5] * 90, loader=True)], None),
        Case(
            "two optimizers", [*started(), *steps(*WANDERS, *[9e5] * 90, loader=True, other_steps={"Adam#2": 1})], None
        ),
        Case(
            "another model's training, with a larger loss",
            [*started(), *steps(*WANDERS, loader=True), *note(HANDOVER), *steps(*[900.0] * 90, first=41, loader=True)],
            None,
        ),
        Case("falls", [*started(), *steps(*[100.0 / n for n in range(1, 200)], loader=True)], None),
        Case(
            "begins at nothing: a student that is a copy of its teacher",
            [*started(), *steps(0.0, *[1e-4 * n for n in range(1, 21)], *[3e-3] * 100, loader=True)],
            None,
        ),
    ],
)
