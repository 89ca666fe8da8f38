"""The gradient norm has become a thousand times larger and stays there.

**What it means.** The norm of the gradients rose by orders of magnitude compared with earlier in this run, and has not
decreased since. Unless the gradients are clipped, the next steps destroy the weights.

**Why it happens.** Common causes are a learning rate that is too high, a recurrent network without gradient clipping, a
batch that is broken or not normalized, or a loss term whose weight changed. On MPS with torch 2.13 or older, a matrix
product over a dimension of 32767 or more reads past the end of its input: gradients are 1e3 to 1e5 times too large
while the loss looks plausible.

**What to do.** Clip gradients, lower the learning rate, and inspect the batch at which it began. On MPS, compare the
gradients of one batch with those computed on the CPU; install torch 2.14, or set `PYTORCH_MPS_PREFER_METAL=1`.

**When it is reported.** It is reported as a `warn` if the norm is more than 1000 times its earlier median in 20
consecutive steps.

**When it is not reported.** The rule ignores short spikes, and norms that grow gradually while the loss falls (as when
leaving a plateau). It also cannot report anything if Holdfast cannot observe a gradient norm.

Sources: pytorch#177116, pytorch#183535.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps

ID = "gradients-exploding"
LIMITS = {"steps": 20}
COMPARED_POINTS = 64


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    gradients = attempt.gradients
    far = gradients.far_above
    if not far.count or far.count < state.get_limits(ID, LIMITS)["steps"]:
        return None
    if not gradients.jumped and _loss_falls(attempt, far.since or 0):
        return None
    times = (gradients.norms.last or 0.0) / gradients.typical_norm.median
    return Finding(
        severity="warn",
        step=far.since,
        message=(
            f"The gradient norm has been about {times:.1g} times its level before step {far.since} "
            f"for {far.count} steps in a row."
        ),
        evidence=[
            f"norm {gradients.norms.last:.4g} now, median {gradients.typical_norm.median:.2g} before",
            f"it {'jumped in one step' if gradients.jumped else 'grew, and the loss did not fall'}",
        ],
        remedies=[
            "clip gradients: torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            "lower the learning rate, and inspect the batch at which it began",
            *(
                [
                    "on MPS with torch 2.13 or older, install torch 2.14 or set PYTORCH_MPS_PREFER_METAL=1 (pytorch#177116)"
                ]
                if state.on_macos
                else []
            ),
        ],
    )


def _loss_falls(attempt: AttemptState, since: int) -> bool:
    points = attempt.loss.points
    before = [point.mean for point in points if point.step < since][-COMPARED_POINTS:]
    after = [point.mean for point in points if point.step >= since]
    return bool(before and after) and sum(after) / len(after) < sum(before) / len(before)


def _rising(first: int, norms: list[float], loss: float, slope: float) -> list[events.AnyEvent]:
    return [
        event for n, norm in enumerate(norms) for event in steps(1, first=first + n, norm=norm, loss=loss + n * slope)
    ]


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    charts=("gradient",),
    remedies=("prefer-metal", "next-device"),
    cases=lambda: [
        Case("a jump that stays", "warn", trains(), steps(50, norm=2.0), steps(25, first=51, norm=9e4)),
        Case(
            "the norm grows and so does the loss",
            "warn",
            steps(50, norm=0.5),
            _rising(51, [0.5 * 1.5**n for n in range(50)], 1.0, 0.1),
        ),
        Case(
            "short spikes",
            None,
            ([steps(9, first=1 + 10 * n, norm=2.0), steps(1, first=10 + 10 * n, norm=1e5)] for n in range(20)),
        ),
        Case(
            "leaving a plateau: the norm grows while the loss falls",
            None,
            steps(50, norm=1e-4),
            _rising(51, [1e-4 * 1.5**n for n in range(60)], 1.0, -0.01),
        ),
        Case("large from the start", None, steps(90, norm=1e6)),
        Case("no norm is observed", None, steps(90)),
    ],
)
