"""Frozen parameters or the running statistics of frozen layers change.

**What it means.** Parameters with `requires_grad=False`, or the running statistics of normalization layers whose
parameters are all frozen, change during training. The part of the model that was meant to stay fixed is different at
the end.

**Why it happens.** A frozen BatchNorm layer in training mode still updates its running mean and variance: only `eval()`
stops this, `requires_grad_(False)` does not. If a parameter is frozen during training, its `.grad` may be zero instead
of None; momentum and weight decay then keep changing it.

**What to do.** Call `.eval()` on frozen normalization layers after every `model.train()`. Pass only trainable
parameters to the optimizer, or set `.grad = None` when you freeze a parameter.

**When it is not reported.** The rule ignores models other than the trained one (moving averages, teachers, target
networks). For networks that are frozen alternately (GANs), only steps of the optimizer that owns the parameter are
checked.

**Severity.** The severity is `warn`. Frozen parameters of the model that change although no optimizer changes them (for
example a momentum encoder, which is a moving average of other parameters) are reported as a `note`.

Sources: discuss.pytorch.org 84911.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps


def judge(state: RunState) -> Finding | None:
    if not state.attempt.weights.frozen:
        return None
    newest = state.attempt.weights.frozen[-1]
    if newest.statistics_moved:
        return _finding(
            newest,
            newest.statistics_moved,
            "The running statistics of frozen layers keep changing: {} changed, although their parameters are frozen.",
            ["call .eval() on the frozen normalization layers after every model.train()"],
        )
    if newest.moved_by_optimizer:
        return _finding(
            newest,
            newest.moved_by_optimizer,
            "An optimizer changes frozen parameters: {}.",
            [
                "pass only trainable parameters to the optimizer",
                "set .grad = None when you freeze a parameter: if the gradient is zero instead of None, momentum and weight decay still change it",
            ],
        )
    if newest.moved:
        return _finding(
            newest,
            newest.moved,
            "Frozen parameters change: {}. This is intended if they are moving averages of other weights.",
            ["if they are meant to stay fixed, find the code that writes to them"],
            note=True,
        )
    return None


def _finding(
    event: events.Frozen, names: list[str], message: str, remedies: list[str], *, note: bool = False
) -> Finding:
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return Finding(
        severity="note" if note else "warn",
        step=event.step,
        message=message.format(shown),
        evidence=[
            (
                f"compared at step {event.step} with step {event.since}: {event.tensors} frozen parameters, "
                f"{event.statistics} frozen layers with running statistics"
            ),
            f"changed: {', '.join(names[:8])}",
        ],
        remedies=remedies,
    )


def _frozen(**names: list[str]) -> list[events.AnyEvent]:
    return [*steps(14), events.Frozen(at=15.0, step=14, since=6, tensors=20, statistics=4, **names)]


RULE = Rule(
    kind="learning",
    on=(events.Frozen,),
    judge=judge,
    in_dry_run=True,
    cases=lambda: [
        Case("a frozen backbone in training mode", "warn", trains(), _frozen(statistics_moved=["body.bn1"])),
        Case("frozen late, with momentum left in the optimizer", "warn", _frozen(moved_by_optimizer=["body.0.weight"])),
        Case("a momentum encoder inside the model", "note", _frozen(moved=["encoder_k.0.weight"])),
        Case("frozen layers that do not change", None, _frozen()),
        Case("nothing is frozen", None, steps(50)),
    ],
)
