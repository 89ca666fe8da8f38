"""The training resumed from a snapshot and did not reproduce its earlier losses.

**What it means.** After a crash, the work since the last snapshot is repeated. Holdfast stores the loss of each batch
in a place that survives a kill, and compares. If the losses are bit for bit the same, the run ends as it would have
without the crash. Here they differ, so its result will be different: not worse, but not the same either.

**Why it happens.** Something that affects the numbers is not in the snapshot: the program's own random generator
(`numpy.random.default_rng`, `random.Random`), state outside the objects that were passed to `holdfast.guard`, data that
changed, or an operation whose sums differ each time. If versions, settings or the number of threads have changed,
Holdfast reports that when the training resumes, and does not expect equal losses.

**What to do.** Pass everything that changes during the training to `holdfast.guard`. Draw from the global generators,
or keep the state of your own generators in `run.state`. For losses to be reproducible at all, two uninterrupted runs
must be equal first.

**When it is silent.** On accelerators, because losses are read later there; and if nothing had to be repeated.
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
        message=f"The training resumed from the snapshot at step {restored.step}, but from step {replayed.differs_at} on its "
        "losses differ from the first time: the run continues, but its result will not be the same.",
        evidence=[f"{replayed.compared} batches compared; the first difference is at step {replayed.differs_at}"],
        remedies=[
            "pass everything that changes during the training to holdfast.guard; keep your own generators in run.state",
            "check whether two uninterrupted runs are equal at all",
        ],
    )


def _make_replay(*, exact: bool = True, differs_at: int | None = None) -> list[events.AnyEvent]:
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
        Case("losses that differ", [*started(), *trains(), *losses(1.0), *_make_replay(differs_at=13)], "warn"),
        Case("identical losses", [*started(), *trains(), *losses(1.0), *_make_replay()], None),
        Case(
            "changed settings, which were reported",
            [*started(), *trains(), *_make_replay(exact=False, differs_at=13)],
            None,
        ),
    ],
)
