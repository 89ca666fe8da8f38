"""What is frozen does not stay as it was.

**What it means.** Parameters that ask for no gradient, or the running statistics of normalisation layers whose parameters
are all frozen, change while the training goes on. The part that was to stay fixed is another one at the end.

**Why it happens.** A frozen BatchNorm in training mode still follows the data with its running mean and variance:
`requires_grad_(False)` does not stop that, `eval()` does. A parameter that was frozen late still has a gradient of zeros
and momentum or weight decay in its optimizer, and both go on moving it.

**What to do.** Call `.eval()` on frozen normalisation layers after every `model.train()`. Give the optimizer only what is to
be trained, or set `.grad = None` where you freeze.

**When it stays silent.** Models beside the trained one (averages, teachers, targets). Parameters that are frozen and move as
averages of others do, in the same model, are a note. Networks that freeze each other in turn are understood: what counts is
whether a parameter is frozen in its own optimizer's steps.

Sources: discuss.pytorch.org 84911.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.relations import steps

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "frozen-weights-moving"


def judge(state: RunState) -> Finding | None:
    if not state.attempt.weights.frozen:
        return None
    newest = state.attempt.weights.frozen[-1]
    if newest.statistics_moved:
        return _finding(
            newest,
            newest.statistics_moved,
            "The running statistics of frozen layers follow the data: {} changed while their parameters stayed.",
            ["call .eval() on the frozen normalisation layers after every model.train()"],
        )
    if newest.moved_by_optimizer:
        return _finding(
            newest,
            newest.moved_by_optimizer,
            "An optimizer moves parameters that are frozen: {}.",
            [
                "give the optimizer only what is to be trained",
                "set .grad = None where you freeze: momentum and weight decay act as long as there is a gradient of zeros",
            ],
        )
    if newest.moved:
        return _finding(
            newest,
            newest.moved,
            "Parameters that ask for no gradient change: {}. Averages of other weights do so on purpose.",
            ["if they are meant to stay fixed, look for what writes to them"],
            note=True,
        )
    return None


def _finding(
    event: events.Frozen, names: list[str], message: str, remedies: list[str], *, note: bool = False
) -> Finding:
    told = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return Finding(
        rule=ID,
        severity="note" if note else "warn",
        step=event.step,
        message=message.format(told),
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
    id=ID,
    kind="learning",
    on=(events.Frozen,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case(
            "a frozen backbone in training mode",
            [*started(), *trains(), *_frozen(statistics_moved=["body.bn1"])],
            "warn",
        ),
        Case("frozen late, and momentum goes on", [*started(), *_frozen(moved_by_optimizer=["body.0.weight"])], "warn"),
        Case("a momentum encoder inside the model", [*started(), *_frozen(moved=["encoder_k.0.weight"])], "note"),
        Case("frozen layers that stay", [*started(), *_frozen()], None),
        Case("nothing is frozen", [*started(), *steps(50)], None),
    ],
)
