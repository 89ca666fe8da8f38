"""The training went on from a snapshot, and did not do again what it had done.

**What it means.** After a death the work since the last snapshot is done again. Holdfast keeps the loss of each batch where a kill
leaves it, and compares: bit for bit the same losses mean that the run ends as it would have without the death. Here they differ, so it
ends otherwise: not worse, but not the same either.

**Why it happens.** Something that changes the numbers is not in the snapshot: a random generator of the program's own
(`numpy.random.default_rng`, `random.Random`), a state outside of the objects that were given to `holdfast.guard`, data that changed, an
operation that gives other sums each time. Where versions, settings or the number of threads are not what they were, that is said when
the training goes on, and nothing is expected to be equal.

**What to do.** Give `holdfast.guard` everything that changes as the training goes on; draw from the global generators, or keep the
state of your own in `run.state`. If the losses are to be repeatable at all, two runs without a death must be equal first.

**When it is silent.** On devices, where a loss is read later; and where nothing had to be done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState


def judge(state: RunState) -> Finding | None:
    snapshots = state.attempt.snapshots
    restored, replayed = snapshots.restored, snapshots.replayed
    if restored is None or not restored.exact or replayed is None or replayed.differs_at is None:
        return None
    return Finding(
        rule="resume-inexact",
        severity="warn",
        message=f"The training went on from the snapshot at step {restored.step}, and from step {replayed.differs_at} on its "
        "losses are not those of the first time: the run goes on, but ends otherwise than it would have.",
        evidence=[f"{replayed.compared} batches compared, the first that differs at step {replayed.differs_at}"],
        remedies=[
            "give holdfast.guard everything that changes as the training goes on; keep generators of your own in run.state",
            "see whether two runs without a death are equal at all",
        ],
    )


def _again(*, exact: bool = True, differs_at: int | None = None) -> list[events.AnyEvent]:
    return [
        events.Restored(at=0.5, step=10, path="snapshots/10", exact=exact),
        events.Replayed(at=1.0, step=20, compared=4, differs_at=differs_at),
    ]


RULE = Rule(
    id="resume-inexact",
    kind="watching",
    on=(events.Replayed,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case("losses that differ", [*started(), *trains(), *losses(1.0), *_again(differs_at=13)], "warn"),
        Case("losses that are the same", [*started(), *trains(), *losses(1.0), *_again()], None),
        Case("other settings, which was said", [*started(), *trains(), *_again(exact=False, differs_at=13)], None),
    ],
)
