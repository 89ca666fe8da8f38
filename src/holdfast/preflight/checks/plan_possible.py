"""Can the plan be carried out at all?

**What it asks.** What `holdfast run PLAN.toml` itself asks before it starts: are the data set, the model, the interpreter and
the folders there, is the disk large enough for what the plan will write, does the budget fit the machine.

**Why.** A model file that is missing in the third stage is found hours later otherwise.

**What to do.** Each finding is one thing to mend in the plan or beside it. Nothing is started while one of them stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks.check import Answer, Case, Check, finding
from holdfast.preflight.validate_plan import survey
from holdfast.schema.plan import Plan

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "plan-possible"


def run(context: CheckContext) -> Answer:
    assert context.plan is not None
    said = survey(context.plan)
    problems = [finding(ID, "fatal", problem, evidence=[problem]) for problem in said.problems]
    notes = [finding(ID, "note", note, evidence=[note]) for note in said.notes]
    stages = max(1, len(context.plan.stages))
    return Answer(f"{stages} stage{'s' if stages > 1 else ''}, and all that they name is there", (*problems, *notes))


CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    needs=("plan",),
    seconds=60.0,
    cases=(
        Case(
            "a folder that is not there",
            linux(plan=Plan(cwd="/nowhere/at/all", command=["python", "train.py"])),
            "fatal",
        ),
        Case("a command and no plan", linux(command=("python", "train.py")), "not checked"),
    ),
)
