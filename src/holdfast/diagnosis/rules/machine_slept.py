"""The machine slept during training.

**What it means.** The clock advanced while the machine was asleep. An epoch that seems to have taken ten hours took its
usual time, and the machine slept for the rest. Training itself did not slow down.

**What to do.** Holdfast asks the system to stay awake during a run. A closed lid, a dead battery or a forced sleep
overrides that, so keep the lid open and the charger connected.

**Severity.** It is always reported as a `note`.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.schema.units import duration
from holdfast.testing.histories import losses, trains


def judge(state: RunState) -> Finding | None:
    slept = state.attempt.pace.slept
    if not slept:
        return None
    return Finding(
        severity="note",
        message=f"The machine slept for {duration(slept)}: the run was paused during that time.",
        evidence=[f"the clock advanced {slept:.0f} s more than the time the machine was awake"],
        remedies=["keep the lid open and the charger connected during a run"],
    )


RULE = Rule(
    kind="resources",
    on=(events.Slept,),
    judge=judge,
    charts=("pace", "epochs"),
    cases=lambda: [
        Case("the machine slept", "note", trains(), losses(1.0), events.Slept(at=9.0, seconds=3600.0)),
        Case("the machine stayed awake", None, trains(), losses(1.0, 0.9)),
    ],
)
