"""Weights do not move although their gradient says so.

**What it means.** A tensor, or some of its rows, got a gradient that is not zero, and the optimizer's step left it exactly
as it was, although the update that was to be expected is larger than what the weight's number format can show. That part
of the model does not learn; the rest works around it, and the curve only looks like a plateau.

**Why it happens.** On some devices an in-place operation on a tensor that is not contiguous writes into a temporary that is
then thrown away (`addcmul_` and `addcdiv_` in Adam's step, `conv2d` weights in channels-last). Or the optimizer's own step
skips or restores parameters, or works on a copy.

**What to do.** Make the parameter contiguous before the optimizer is made (`p.data = p.data.contiguous()`), install a newer
torch, or run a few steps on the CPU: if the tensor moves there, the device is at fault.

**When it stays silent.** A learning rate of zero; rows without a gradient (sparse and padding rows); updates below one unit
in the weight's last place (see updates-underflow); steps that a gradient scaler skipped. What stayed was seen to stay in at
least two steps in a row, and in three where it is only a part of a tensor. Of an optimizer that is not one of torch's own,
the update is judged by how far its step moved other weights: that is a warning, because it may be meant so.

Sources: pytorch#118115, pytorch#165267, pytorch#192212.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding, Severity
from holdfast.testing.histories import started, trains
from holdfast.testing.relations import steps, stuck, weight_updates

if TYPE_CHECKING:
    from holdfast.diagnosis.aggregators.weights import Stuck, Weights
    from holdfast.diagnosis.run_state import RunState

ID = "weights-frozen"
LIMITS = {"times_of_a_part": 2, "samples_where_nothing_moves": 3, "steps_where_nothing_moves": 64}
REMEDIES = [
    "make the named parameters contiguous before the optimizer is made: p.data = p.data.contiguous()",
    "install a newer torch: in-place writes to non-contiguous tensors were lost on MPS before 2.4, and again later",
    "run a few steps on the CPU: if the weights move there, the device is at fault",
]


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    weights = attempt.weights
    if weights.weight_updates is None or (not weights.had_to_move and weights.most_moved):
        return None
    limits = state.tuned(ID, LIMITS)
    stayed = {name: tensor for name, tensor in weights.stuck.items() if tensor.had_to_move}
    often = {name for name, tensor in stayed.items() if tensor.times >= limits["times_of_a_part"]}
    known = {name for name, tensor in stayed.items() if not tensor.last.by_others}
    for_sure = {name: tensor for name, tensor in stayed.items() if name in known and (tensor.wholly or name in often)}
    if for_sure:
        return _some(for_sure, "fatal")
    by_others = {name: tensor for name, tensor in stayed.items() if name in often}
    if by_others:
        return _some(by_others, "warn")
    if weights.most_moved or (attempt.rates.latest and not max(attempt.rates.latest)):
        return None
    return _none(weights, limits["samples_where_nothing_moves"], limits["steps_where_nothing_moves"])


def _some(tensors: dict[str, Stuck], severity: Severity) -> Finding:
    names = list(tensors)
    first = tensors[names[0]].last
    rows = f"{first.stuck} of {first.with_gradient} rows with a gradient"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Finding(
        rule=ID,
        severity=severity,
        step=min(tensor.first_step for tensor in tensors.values()),
        message=f"{names[0]}{more} did not move although the gradient says so ({rows}): this part of the model does not learn.",
        evidence=[
            f"{name}: {tensor.last.stuck} of {tensor.last.with_gradient} rows with a gradient stayed exactly as they were; "
            f"the update was worth up to {tensor.last.update_ulps:.3g} units in the last place"
            + (", by how far others moved" if tensor.last.by_others else "")
            + _state(tensor.last.state_moved)
            for name, tensor in list(tensors.items())[:5]
        ],
        remedies=REMEDIES,
    )


def _state(moved: bool | None) -> str:
    return "" if moved is None else f"; the optimizer's own state {'moved' if moved else 'did not move either'}"


def _none(weights: Weights, samples: float, over_steps: float) -> Finding | None:
    """No update can be estimated, but none has ever shown."""
    newest = weights.weight_updates
    if newest is None or weights.samples < samples or newest.step - (weights.first_sample or 0) < over_steps:
        return None
    unknown = [tensor.name for tensor in newest.stuck if tensor.update_ulps is None]
    if not unknown:
        return None
    return Finding(
        rule=ID,
        severity="fatal",
        message=f"Not one of {newest.checked} weight tensors has moved in {newest.step} steps although there are gradients.",
        evidence=[
            f"{weights.samples} looks from step {weights.first_sample} to step {newest.step}, none saw a weight move",
            f"with a gradient that is not zero: {', '.join(unknown[:5])}",
        ],
        remedies=["check that the optimizer's step really updates its parameters", *REMEDIES],
    )


RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.WeightUpdates,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case(
            "a whole tensor stays",
            [*started(), *trains(), *steps(2), *weight_updates(2, stuck("fc.weight", 4000.0))],
            "fatal",
        ),
        Case(
            "one row stays, time after time",
            [
                *started(),
                *weight_updates(2, stuck("fc.weight", 90.0, rows=1)),
                *weight_updates(3, stuck("fc.weight", 90.0, rows=1, times=2)),
            ],
            "fatal",
        ),
        Case(
            "an optimizer that nobody knows, and nothing ever moves",
            [
                *started(),
                *steps(100),
                *(e for s in (2, 40, 90) for e in weight_updates(s, stuck("a", None), stuck("b", None), checked=2)),
            ],
            "fatal",
        ),
        Case(
            "an own optimizer leaves one tensor where it is",
            [
                *started(),
                *weight_updates(2, stuck("second", 40.0, by_others=True)),
                *weight_updates(3, stuck("second", 40.0, times=2, by_others=True)),
            ],
            "warn",
        ),
        Case("an own optimizer, seen once", [*started(), *weight_updates(2, stuck("a", 40.0, by_others=True))], None),
        Case("a row stayed once", [*started(), *weight_updates(2, stuck("fc.weight", 90.0, rows=1))], None),
        Case(
            "one row stayed once, then moved",
            [
                *started(),
                *weight_updates(2, stuck("a", 9.0, rows=1)),
                *weight_updates(9, again=("a",)),
                *weight_updates(20),
            ],
            None,
        ),
        Case("updates too small to show", [*started(), *weight_updates(2, stuck("a", 0.3), stuck("b", 0.45))], None),
        Case(
            "warm-up from zero with an unknown optimizer",
            [
                *started(),
                *steps(100, lr=0.0),
                *(e for s in (2, 40, 90) for e in weight_updates(s, stuck("a", None), checked=1)),
            ],
            None,
        ),
        Case("unknown updates at first", [*started(), *weight_updates(2, stuck("a", None)), *weight_updates(9)], None),
        Case("everything moves", [*started(), *weight_updates(1), *weight_updates(50)], None),
    ],
)
