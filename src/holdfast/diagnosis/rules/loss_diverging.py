"""The loss is far above its starting value and stays there.

**What it means.** The model is much worse than the untrained model was. A single spike in the loss recovers; this does
not.

**Why it happens.** Possible causes are a learning rate that is too high, missing warm-up, inputs that are not
normalized, gradients that are not cleared between steps, a wrong sign in the loss, or overflow in half precision.

**What to do.** Resume from a checkpoint saved before the loss rose. Divide the learning rate by ten, add warm-up, and
clip gradients.

**When it is reported.** Either of these conditions is sufficient:

- For 50 consecutive steps, every loss is more than 10 times the highest of the first 20 losses, and the newest losses
  are at least 100 times that value (1000 times if Holdfast does not observe a `DataLoader`).
- The loss jumped within the first 20 steps, as it does if the learning rate is far too high: for 100 consecutive steps,
  every loss is more than 5 times the very first loss, and the newest losses are at least 10 times that value.

**Severity.** It is reported as `fatal` if the loss is more than 1,000,000 times the highest of the first 20 losses, is
still rising, and the gradient norm has grown by a factor of more than 1000. Otherwise it is reported as `warn`.

**When it is not reported.** Nothing is reported in these cases:

- The loss goes below zero (policy gradients, densities).
- Several optimizers are used (adversarial training), or a second optimizer replaces the first.
- The loss recovers from a spike, or is falling again, for example after a new term was added to it.
- The loss jumped early, but the first loss was below 0.1: a loss that starts near zero can only rise (for example, if a
  student starts as a copy of its teacher).
- The loss jumped early in an Ultralytics run: a detector has no box loss until its first predictions match an object,
  so a later rise is normal.

Sources: Stack Overflow question 60335387.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.losses import EARLY, LEAP
from holdfast.diagnosis.hints import suggest_earlier_checkpoint
from holdfast.diagnosis.loss_semantics import has_single_optimizer, is_detector, is_positive, uses_loader
from holdfast.diagnosis.rule import Case, Rule
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
SEGMENTS = 5
MIN_GRADIENT_GROWTH = 1e3


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    losses = attempt.losses
    limits = state.get_limits("loss-diverging", LIMITS)
    if losses.far_steps < limits["steps"] and losses.left_steps < limits["steps_after_a_leap"]:
        return None
    if not is_positive(attempt) or not has_single_optimizer(attempt):
        return None
    return _judge_high_losses(state, limits) or _judge_early_jump(state, limits)


def _judge_high_losses(state: RunState, limits: Mapping[str, float]) -> Finding | None:
    attempt = state.attempt
    losses = attempt.losses
    if losses.far_steps < limits["steps"]:
        return None
    stretch = _select_newest(attempt, int(min(losses.far_steps, 4 * limits["steps"])))
    level, initial = _compute_level(stretch), max(losses.early)
    ratio = level / initial
    if ratio < limits["times" if uses_loader(attempt) else "times_without_a_loader"] or _is_falling(stretch):
        return None
    proven = ratio > limits["times_of_proof"] and _is_rising(stretch) and _have_gradients_grown(attempt)
    evidence = f"each of the last {losses.far_steps} losses is more than 10 times the highest of the first {EARLY}"
    return _report_divergence(state, level, initial, losses.far_steps, evidence, proven=proven)


def _judge_early_jump(state: RunState, limits: Mapping[str, float]) -> Finding | None:
    attempt = state.attempt
    losses, initial = attempt.losses, attempt.loss.first
    if losses.left_steps < limits["steps_after_a_leap"] or losses.left_after >= EARLY:
        return None
    stretch = _select_newest(attempt, losses.left_steps)
    level = _compute_level(stretch)
    if initial is None or initial < limits["least_first_loss"] or level < limits["times_after_a_leap"] * initial:
        return None
    if _is_resumed(attempt) or is_detector(attempt) or _is_falling(stretch):
        return None
    evidence = f"each of the last {losses.left_steps} losses is more than {LEAP:g} times the very first"
    return _report_divergence(state, level, initial, losses.left_steps, evidence, proven=False)


def _report_divergence(
    state: RunState, level: float, initial: float, steps: int, evidence: str, *, proven: bool
) -> Finding:
    since = state.attempt.last_step - steps + 1
    return Finding(
        severity="fatal" if proven else "warn",
        message=f"The loss is {level / initial:.3g} times its starting value ({level:.4g} compared with {initial:.4g}) and has been far "
        f"above it since step {since}" + (", and it is still rising: it will not recover." if proven else "."),
        evidence=[evidence, f"the newest losses are about {level:.4g}; the loss started at {initial:.4g}"],
        remedies=[
            *suggest_earlier_checkpoint(state, since),
            "divide the learning rate by ten, or add warm-up",
            "clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            "check that inputs are normalized and that gradients are cleared at each step",
        ],
        confidence="proven" if proven else "likely",
        corrupt_from=since,
    )


def _is_resumed(attempt: AttemptState) -> bool:
    return attempt.started.resume is not None and attempt.started.resume.checkpoint is not None


def _compute_level(stretch: list[Recent]) -> float:
    return statistics.median(point.mean for point in stretch[-10:])


def _select_newest(attempt: AttemptState, remaining_steps: int) -> list[Recent]:
    """Return the newest losses that cover the given number of steps, oldest first."""
    newest: list[Recent] = []
    for point in reversed(attempt.losses.recent):
        if remaining_steps <= 0:
            break
        remaining_steps -= point.n
        newest.append(point)
    return newest[::-1]


def _is_falling(stretch: list[Recent]) -> bool:
    half = len(stretch) // 2
    if half < 5:
        return False
    before, after = stretch[:half], stretch[half:]
    return statistics.median(p.mean for p in after) < 0.7 * statistics.median(p.mean for p in before)


def _is_rising(stretch: list[Recent]) -> bool:
    """Return whether the mean rises from each fifth of the stretch to the next."""
    length = len(stretch) // SEGMENTS
    if length < 2:
        return False
    means = [statistics.fmean(p.mean for p in stretch[n * length : (n + 1) * length]) for n in range(SEGMENTS)]
    return all(later > 1.5 * earlier for earlier, later in pairwise(means))


def _have_gradients_grown(attempt: AttemptState) -> bool:
    points = attempt.gradients.norms.points
    if len(points) < 20:
        return False
    at_first = max(point.high for point in points[:5])
    return statistics.fmean(point.mean for point in points[-3:]) > MIN_GRADIENT_GROWTH * at_first > 0.0


GROWING = [1.0 * 1.3**n for n in range(140)]
NOISY = [2.0 + 0.1 * (n % 5) for n in range(40)]
RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    contradicts=("loss-fell",),
    remedies=("full-precision", "prefer-metal", "next-device", "half-rate"),
    cases=lambda: [
        Case(
            "the loss keeps rising, and the gradients rise with it",
            [*started(), *trains(), *steps(*GROWING, norm=GROWING)],
            "fatal",
        ),
        Case("the loss keeps rising, and the gradients are unknown", [*started(), *steps(*GROWING)], "warn"),
        Case(
            "the loss jumps to a high level and stays there",
            [*started(), *steps(*NOISY, *[900.0 + 50 * (n % 7) for n in range(80)], loader=True)],
            "warn",
        ),
        Case(
            "the loss jumps in the first steps because the learning rate is far too high",
            [*started(), *steps(49.9, 222.6, 912.9, *[900.0 + 90 * (n % 9) for n in range(120)])],
            "warn",
        ),
        Case(
            "an early jump that recovers",
            [*started(), *steps(2.3, 9.0, *[90.0 * 0.97**n for n in range(150)])],
            None,
        ),
        Case(
            "an easy first batch",
            [*started(), *steps(0.2, *[2.3 + 3 * (n % 7) * 0.4 - 1.5 for n in range(150)])],
            None,
        ),
        Case("a spike that recovers", [*started(), *steps(*NOISY, *[5e4] * 30, *NOISY, loader=True)], None),
        Case(
            "a new loss term that is being learned",
            [*started(), *steps(*NOISY, *[4000.0 * 0.97**n for n in range(90)], loader=True)],
            None,
        ),
        Case(
            "returns grow while a policy learns",
            [*started(), *steps(*[14.0 + n for n in range(30)], *[9000.0 + 90 * (n % 9) for n in range(200)])],
            None,
        ),
        Case("a loss that goes below zero", [*started(), *steps(-1.0, *NOISY, *[9e5] * 90, loader=True)], None),
        Case("two optimizers", [*started(), *steps(*NOISY, *[9e5] * 90, loader=True, other_steps={"Adam#2": 1})], None),
        Case(
            "a second model with a larger loss, trained in the same process",
            [
                *started(),
                *steps(*NOISY, loader=True),
                *note("optimizer-handover"),
                *steps(*[900.0] * 90, first=41, loader=True),
            ],
            None,
        ),
        Case("a loss that falls", [*started(), *steps(*[100.0 / n for n in range(1, 200)], loader=True)], None),
        Case(
            "a student that starts as a copy of its teacher, with a loss near zero",
            [*started(), *steps(0.0, *[1e-4 * n for n in range(1, 21)], *[3e-3] * 100, loader=True)],
            None,
        ),
    ],
)
