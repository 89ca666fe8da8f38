"""The machine slept while the training ran.

**What it means.** The wall clock went on and the machine did not: an epoch that seems to have taken ten hours took its usual
time, and the rest was sleep. That is no slow-down of the training.

**What to do.** Holdfast asks the system to stay awake while a run lives. A closed lid, an empty battery or a forced sleep
wins over that: keep the lid open and the charger in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.units import duration
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState


def judge(state: RunState) -> Finding | None:
    slept = state.attempt.pace.slept
    if not slept:
        return None
    return Finding(
        rule="machine-slept",
        severity="note",
        message=f"The machine slept for {duration(slept)}: that time is not the training's.",
        evidence=[f"the wall clock ran {slept:.0f} s ahead of the machine's running time"],
        remedies=["keep the lid open and the charger in while a run lives"],
    )


RULE = Rule(
    id="machine-slept",
    kind="resources",
    on=(events.Slept,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case("it slept", [*started(), *trains(), *losses(1.0), events.Slept(at=9.0, seconds=3600.0)], "note"),
        Case("it did not", [*started(), *trains(), *losses(1.0, 0.9)], None),
    ],
)
