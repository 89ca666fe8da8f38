"""Gradients are NaN or infinite.

**What it means.** A step with a non-finite gradient makes the weights non-finite, and then every later loss.

**Why it happens.** Common causes are an overflow in half precision, a division by zero, the derivative of `sqrt`,
`norm` or `log` at zero (the loss itself can still look normal), a learning rate that is too high, or invalid inputs. If
a gradient scaler skips step after step, the gradients are non-finite for a reason other than overflow, and no loss
scale helps.

**What to do.** Call `torch.autograd.set_detect_anomaly(True)` to find the operation. Add a small epsilon under roots
and logarithms and in divisions, clip gradients, lower the learning rate, and go back to an earlier checkpoint.

**Severity.** Holdfast checks the gradients only in some of the steps; the norm is known in every step if gradients are
clipped.

- `fatal` if gradients were not finite in three consecutive checked steps, if the norm was not finite in five
  consecutive steps, or if a gradient scaler skipped 60 steps in a row.
- `warn` if a gradient scaler skipped 24 steps in a row. The count is reset by the next step that is taken.
- `note` for a single non-finite gradient.

**When it is not reported.** It is normal that a gradient scaler skips a few steps. Non-finite gradients are ignored if
their step was then skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.hints import suggest_earlier_checkpoint, suggest_lower_rate
from holdfast.diagnosis.remedy_ids import NOT_FINITE
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.relations import sample, steps

if TYPE_CHECKING:
    from holdfast.diagnosis.aggregators.running_stats import Streak
    from holdfast.diagnosis.run_state import AttemptState, RunState

ID = "gradients-not-finite"
LIMITS = {"samples": 3, "norms": 5, "skipped": 24, "skipped_for_good": 60}
REMEDIES = [
    "find the operation: torch.autograd.set_detect_anomaly(True) for a few steps",
    "halve the learning rate, and clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
    "add a small epsilon under roots and logarithms and in divisions",
]


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    gradients = attempt.gradients
    samples = (
        gradients.nonfinite
        if gradients.nonfinite.count >= gradients.nonfinite_others.count
        else gradients.nonfinite_others
    )
    if not (samples.count or gradients.nonfinite_norms.count or gradients.skipped_in_a_row > 1):
        return None
    limits = state.get_limits(ID, LIMITS)
    # Steps may be reported later than the skips that follow them; a step after the skips ends them.
    still_skipping = gradients.skipped_after is not None and attempt.last_step <= gradients.skipped_after
    if gradients.skipped_in_a_row >= limits["skipped"] and still_skipping:
        return _report_skips(gradients.skipped_in_a_row, attempt, limits["skipped_for_good"])
    norms = gradients.nonfinite_norms
    if samples.count >= limits["samples"] or norms.count >= limits["norms"]:
        return _report_streak(state, samples if samples.count >= limits["samples"] else norms)
    streak = samples if samples.count else norms
    if streak.until is None or attempt.last_step < streak.until:  # a scaler may still skip this step
        return None
    return Finding(
        severity="note",
        step=streak.since,
        message=f"A gradient was NaN or Inf at step {streak.since}.",
        evidence=_evidence(attempt, streak),
        remedies=REMEDIES,
    )


def _report_streak(state: RunState, streak: Streak) -> Finding:
    attempt = state.attempt
    return Finding(
        severity="fatal",
        step=streak.since,
        corrupt_from=streak.since,
        message=f"Gradients have been NaN or Inf since step {streak.since}: the weights have been corrupt since then.",
        evidence=_evidence(attempt, streak),
        remedies=[
            *suggest_lower_rate(attempt, streak.since),
            *suggest_earlier_checkpoint(state, streak.since),
            *REMEDIES,
        ],
    )


def _report_skips(count: int, attempt: AttemptState, fatal_from: float) -> Finding:
    return Finding(
        severity="fatal" if count >= fatal_from else "warn",
        message=f"The gradient scaler has skipped {count} steps in a row: no loss scale makes the gradients finite.",
        evidence=[
            f"no step was taken after step {attempt.last_step}; {count} were skipped",
            f"each skip halved the scale: it is now 2**{count} times smaller",
        ],
        remedies=REMEDIES,
    )


def _evidence(attempt: AttemptState, streak: Streak) -> list[str]:
    latest = attempt.gradients.latest
    names = latest.nonfinite_names if latest is not None else []
    return [
        f"{streak.count} in a row, from step {streak.since} to step {streak.until}",
        *([f"not finite in {', '.join(names[:5])}"] if names else []),
    ]


def _skips(count: int, after: int) -> list[events.AnyEvent]:
    return [events.Skipped(at=float(after), step=after, optimizer="Adam") for _ in range(count)]


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.Gradients, events.Skipped),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    suspects_device=True,
    in_dry_run=True,
    charts=("gradient",),
    remedies=NOT_FINITE,
    cases=lambda: [
        Case(
            "NaN in three steps that were taken",
            [*started(), *trains(), *steps(4), *(e for s in (5, 6, 7) for e in sample(s, norm="nan", nonfinite=1))],
            "fatal",
        ),
        Case(
            "only the norm computed for clipping is infinite",
            [*started(), *steps(4, norm=1.0), *steps(5, first=5, norm="inf")],
            "fatal",
        ),
        Case("no loss scale helps", [*started(), *steps(4), *_skips(60, 4)], "fatal"),
        Case("many skips in a row", [*started(), *steps(4), *_skips(30, 4)], "warn"),
        Case("many skips, reported before the step that they follow", [*started(), *_skips(30, 4), *steps(4)], "warn"),
        Case(
            "a single non-finite gradient",
            [*started(), *steps(4), *sample(5, norm="inf", nonfinite=1), *steps(3, first=5)],
            "note",
        ),
        Case(
            "a scaler adjusts its scale",
            [*started(), *_skips(9, 0), *steps(10), *_skips(1, 10), *steps(5, first=11), *_skips(1, 15)],
            None,
        ),
        Case(
            "a fused optimizer that skips the step itself",
            [
                *started(),
                *steps(4),
                *(
                    e
                    for s in (5, 6, 7, 8)
                    for e in [*sample(s, norm="inf", nonfinite=2), *_skips(1, s - 1), *steps(1, first=s)]
                ),
            ],
            None,
        ),
        Case("large but finite", [*started(), *steps(9, norm=1e30), *sample(9, norm=1e30)], None),
    ],
)
