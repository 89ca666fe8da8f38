"""The run resumed from a snapshot and did not reproduce its earlier losses.

**What it means.** After a crash, the work since the last snapshot is repeated. Holdfast records the loss of each batch
on disk and compares it with the loss of the repeated batch. If the losses are bitwise identical, the run ends as it
would have without the crash. Here they differ, so the final model will not be bitwise identical to that of an
uninterrupted run. It is not necessarily worse.

**Why it happens.** Something that affects the numbers is not in the snapshot: your own random generator
(`numpy.random.default_rng`, `random.Random`), or state outside the objects that were passed to `holdfast.guard`. Or the
data changed, or an operation is nondeterministic. If versions, settings or the number of threads have changed, Holdfast
reports that when the run resumes, and does not expect equal losses.

**What to do.** First check that two uninterrupted runs produce identical losses; see PyTorch's notes on
reproducibility. Pass everything that changes during training to `holdfast.guard`. Use the global random generators, or
store the state of your own in `run.state`, where `run` is the object returned by `holdfast.guard` (see docs/guard.md).

**Severity.** It is always reported as `warn`. The run continues.

**When it is not reported.** Losses are compared only in runs on the CPU with a single rank, because accelerators return
losses asynchronously. Nothing is reported if no steps were repeated.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import losses, trains


def judge(state: RunState) -> Finding | None:
    snapshots = state.attempt.snapshots
    restored, replayed = snapshots.restored, snapshots.replayed
    if restored is None or not restored.exact or replayed is None or replayed.differs_at is None:
        return None
    return Finding(
        severity="warn",
        message=f"The run resumed from the snapshot at step {restored.step}, but starting at step {replayed.differs_at} its "
        "losses differ from the original ones: the run continues, but the final model will not be bitwise identical.",
        evidence=[f"{replayed.compared} batches compared; the first difference is at step {replayed.differs_at}"],
        remedies=[
            "pass everything that changes during training to holdfast.guard, and store the state of your own random generators in run.state",
            "check that two uninterrupted runs produce identical losses",
        ],
    )


def _make_replay(*, exact: bool = True, differs_at: int | None = None) -> list[events.AnyEvent]:
    return [
        events.Restored(at=0.5, step=10, path="snapshots/10", exact=exact),
        events.Replayed(at=1.0, step=20, compared=4, differs_at=differs_at),
    ]


RULE = Rule(
    kind="watching",
    on=(events.Replayed,),
    judge=judge,
    cases=lambda: [
        Case("losses that differ", "warn", trains(), losses(1.0), _make_replay(differs_at=13)),
        Case("identical losses", None, trains(), losses(1.0), _make_replay()),
        Case("changed settings, which were reported", None, trains(), _make_replay(exact=False, differs_at=13)),
    ],
)
