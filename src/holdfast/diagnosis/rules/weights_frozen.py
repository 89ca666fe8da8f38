"""Trainable weights do not change although they have a nonzero gradient.

**What it means.** A tensor, or some of its rows, had a nonzero gradient, but the optimizer step did not change it. The
expected update is too large to be lost to rounding in the dtype of the weight. That part of the model does not learn;
the rest of the model compensates, and the loss curve looks like a plateau. This rule is not about weights that are
frozen on purpose with `requires_grad=False`.

**Why it happens.** On some devices, an in-place operation on a non-contiguous tensor writes into a temporary tensor
that is then discarded (for example, `addcmul_` and `addcdiv_` in `Adam.step()` on channels-last `Conv2d` weights). Or
the optimizer's own step skips or restores parameters, or works on a copy.

**What to do.** Make the parameter contiguous before the optimizer is created (`p.data = p.data.contiguous()`), or
install a newer torch. To find out whether the device is the cause, run a few steps on the CPU. If the tensor changes
there, the device is the cause.

**When it is reported.** Any of these conditions is sufficient:

- A whole tensor stays unchanged in two consecutive steps.
- Some rows of a tensor stay unchanged in three consecutive steps.
- The expected updates are unknown, and no weight has changed in at least three checks over at least 64 steps.

**Severity.** It is reported as `fatal`. For an optimizer that is not part of torch, the expected update is estimated
from how far the same step moved other weights. The tensor must then stay unchanged in three consecutive steps, and the
severity is only `warn`, because the optimizer may skip the weight on purpose.

**When it is not reported.** Nothing is reported if the learning rate is zero, for rows without a gradient (sparse and
padding rows), for updates below one unit in the last place of the weight (see updates-underflow), or for steps that a
gradient scaler skipped.

Sources: pytorch#118115, pytorch#165267, pytorch#192212.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState, Severity
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps, stuck, weight_updates

if TYPE_CHECKING:
    from holdfast.diagnosis.aggregators.weights import Stuck, Weights

ID = "weights-frozen"
LIMITS = {"times_of_a_part": 2, "samples_where_nothing_moves": 3, "steps_where_nothing_moves": 64}
REMEDIES = [
    "make the named parameters contiguous before the optimizer is created: p.data = p.data.contiguous()",
    "install a newer torch: in-place writes to non-contiguous tensors were lost on MPS before 2.4, and again later",
    "run a few steps on the CPU: if the weights change there, the device is the cause",
]


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    weights = attempt.weights
    if weights.weight_updates is None or (not weights.had_to_move and weights.most_moved):
        return None
    limits = state.get_limits(ID, LIMITS)
    unchanged = {name: tensor for name, tensor in weights.stuck.items() if tensor.had_to_move}
    repeated = {name for name, tensor in unchanged.items() if tensor.times >= limits["times_of_a_part"]}
    with_known_update = {name for name, tensor in unchanged.items() if not tensor.last.by_others}
    proven = {
        name: tensor
        for name, tensor in unchanged.items()
        if name in with_known_update and (tensor.wholly or name in repeated)
    }
    if proven:
        return _report_tensors(proven, "fatal")
    estimated = {name: tensor for name, tensor in unchanged.items() if name in repeated}
    if estimated:
        return _report_tensors(estimated, "warn")
    if weights.most_moved or (attempt.rates.latest and not max(attempt.rates.latest)):
        return None
    return _judge_unknown_updates(weights, limits["samples_where_nothing_moves"], limits["steps_where_nothing_moves"])


def _report_tensors(tensors: dict[str, Stuck], severity: Severity) -> Finding:
    names = list(tensors)
    first = tensors[names[0]].last
    rows = f"{first.stuck} of {first.with_gradient} rows with a gradient"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Finding(
        severity=severity,
        step=min(tensor.first_step for tensor in tensors.values()),
        message=f"{names[0]}{more} did not change despite a nonzero gradient ({rows}): this part of the model does not learn.",
        evidence=[
            f"{name}: {tensor.last.stuck} of {tensor.last.with_gradient} rows with a gradient did not change at all; "
            f"the expected update was up to {tensor.last.update_ulps:.3g} units in the last place"
            + (", estimated from other weights" if tensor.last.by_others else "")
            + _describe_optimizer_state(tensor.last.state_moved)
            for name, tensor in list(tensors.items())[:5]
        ],
        remedies=REMEDIES,
    )


def _describe_optimizer_state(has_changed: bool | None) -> str:
    return (
        ""
        if has_changed is None
        else f"; the optimizer's own state {'changed' if has_changed else 'did not change either'}"
    )


def _judge_unknown_updates(weights: Weights, min_samples: float, min_steps: float) -> Finding | None:
    """Judge weights whose updates cannot be estimated, if none has ever changed."""
    newest = weights.weight_updates
    if newest is None or weights.samples < min_samples or newest.step - (weights.first_sample or 0) < min_steps:
        return None
    unknown = [tensor.name for tensor in newest.stuck if tensor.update_ulps is None]
    if not unknown:
        return None
    return Finding(
        severity="fatal",
        message=f"None of the {newest.checked} weight tensors has changed in {newest.step} steps although they have gradients.",
        evidence=[
            f"{weights.samples} checks from step {weights.first_sample} to step {newest.step}, no weight changed in any of them",
            f"with a nonzero gradient: {', '.join(unknown[:5])}",
        ],
        remedies=["check that the optimizer's step really updates its parameters", *REMEDIES],
    )


RULE = Rule(
    kind="learning",
    on=(events.WeightUpdates,),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    suspects_device=True,
    in_dry_run=True,
    contradicts=("weights-moved",),
    remedies=("next-device",),
    cases=lambda: [
        Case(
            "a whole tensor does not change", "fatal", trains(), steps(2), weight_updates(2, stuck("fc.weight", 4000.0))
        ),
        Case(
            "one row does not change in consecutive steps",
            "fatal",
            weight_updates(2, stuck("fc.weight", 90.0, rows=1)),
            weight_updates(3, stuck("fc.weight", 90.0, rows=1, times=2)),
        ),
        Case(
            "an unknown optimizer, and no weight ever changes",
            "fatal",
            steps(100),
            (weight_updates(s, stuck("a", None), stuck("b", None), checked=2) for s in (2, 40, 90)),
        ),
        Case(
            "a custom optimizer leaves one tensor unchanged",
            "warn",
            weight_updates(2, stuck("second", 40.0, by_others=True)),
            weight_updates(3, stuck("second", 40.0, times=2, by_others=True)),
        ),
        Case(
            "a custom optimizer leaves one tensor unchanged once",
            None,
            weight_updates(2, stuck("a", 40.0, by_others=True)),
        ),
        Case("a row that stayed unchanged in one step", None, weight_updates(2, stuck("fc.weight", 90.0, rows=1))),
        Case(
            "a row that stayed unchanged in one step, then changed",
            None,
            weight_updates(2, stuck("a", 9.0, rows=1)),
            weight_updates(9, again=("a",)),
            weight_updates(20),
        ),
        Case("updates too small to have an effect", None, weight_updates(2, stuck("a", 0.3), stuck("b", 0.45))),
        Case(
            "warm-up from zero with an unknown optimizer",
            None,
            steps(100, lr=0.0),
            (weight_updates(s, stuck("a", None), checked=1) for s in (2, 40, 90)),
        ),
        Case("unknown updates at first", None, weight_updates(2, stuck("a", None)), weight_updates(9)),
        Case("all weights change", None, weight_updates(1), weight_updates(50)),
    ],
)
