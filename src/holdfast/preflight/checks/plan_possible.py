"""Can the plan run at all?

**What it checks.** Performs the same checks as `holdfast run PLAN.toml` before it starts: do the dataset, the model, the interpreter
and the folders exist? Is there enough disk space for what the plan will write? Does the machine have the memory that the budget allows?

**Why.** Without this check, a model file that is missing in the third stage is only noticed hours later.

**What to do.** Fix each finding, in the plan or in the files that it names. The plan does not start until all of them are fixed.
"""

from __future__ import annotations

from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, fatal, note
from holdfast.preflight.validate_plan import validate
from holdfast.schema.plan import Plan


def run(context: CheckContext) -> Answer:
    assert context.plan is not None
    result = validate(context.plan)
    problems = [fatal(problem, evidence=[problem]) for problem in result.problems]
    notes = [note(text, evidence=[text]) for text in result.notes]
    stages = max(1, len(context.plan.stages))
    return Answer(f"{stages} stage{'s' if stages > 1 else ''}, and everything they need exists", (*problems, *notes))


CHECK = Check(
    kind="environment",
    run=run,
    needs=("plan",),
    seconds=60.0,
    cases=lambda: (
        Case(
            "a plan whose working directory does not exist",
            linux(plan=Plan(cwd="/nowhere/at/all", command=["python", "train.py"])),
            "fatal",
        ),
        Case("a command without a plan", linux(command=("python", "train.py")), "not checked"),
    ),
)
