"""`holdfast run`: run a training command under supervision."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class OnFinding(str, Enum):
    act = "act"
    warn = "warn"


Command = Annotated[
    list[str],
    typer.Argument(metavar="PLAN.toml | COMMAND", help="A plan file, or the training command and its arguments."),
]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the run (default: the name of the script)."),
]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Run folder (default: .holdfast/runs/NAME-N)."),
]
MaxAttempts = Annotated[
    int,
    typer.Option(
        metavar="N",
        show_default=False,
        help="Maximum number of times to start training (default: 3 for a command; for each stage of a plan, `attempts` in [budget], or 10 if omitted).",
    ),
]
OnFindingOption = Annotated[
    OnFinding,
    typer.Option(
        help="What to do about a fatal finding: act stops training, and restarts it if a remedy is known or a restart can help; warn only reports the finding."
    ),
]
ObserveOnly = Annotated[
    bool,
    typer.Option("--observe-only", help="Only watch and record; never stop, restart or change anything."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="GLOB", help="Glob pattern for the checkpoint files that the command writes."),
]
ResumeWith = Annotated[
    str | None,
    typer.Option(
        metavar="ARGS",
        help='Arguments to append to the command when resuming, e.g. "--resume {checkpoint}"; {checkpoint} is replaced with the path.',
    ),
]
OnEvent = Annotated[
    str | None,
    typer.Option(
        metavar="CMD",
        help="Command to run when the run starts, restarts or ends, a stage ends, or a warn or fatal finding is reported; it receives JSON on stdin.",
    ),
]
Rule = Annotated[
    list[str],
    typer.Option(
        metavar="ID[.LIMIT]=VALUE",
        help="Configure a rule: ID=off|note|warn limits its severity; ID.LIMIT=NUMBER changes one of its limits (see `holdfast rules ID`). Can be repeated.",
    ),
]
HangAfter = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time without progress after which Holdfast checks whether training has hung (default: 300; 900 before the first step). It is never less than ten times the longest pause so far.",
    ),
]
Backoff = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Time to wait before the second attempt; doubled for each further attempt, up to 60, until an attempt makes progress.",
    ),
]
MaxLostWork = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Maximum training time that a crash may lose, if snapshots are taken (default: 120, or more if snapshots are expensive). If you set a value, it applies regardless of the cost of a snapshot.",
    ),
]
Check = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Whether to run `holdfast check` before a plan is started."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the summary as JSON on the last line of stdout."),
]


def run(
    context: typer.Context,
    command: Command,
    name: Name = None,
    folder: Folder = None,
    max_attempts: MaxAttempts = 3,
    on_finding: OnFindingOption = OnFinding.act,
    observe_only: ObserveOnly = False,
    checkpoint: Checkpoint = None,
    resume_with: ResumeWith = None,
    on_event: OnEvent = None,
    rule: Rule = [],
    hang_after: HangAfter = None,
    backoff: Backoff = 2.0,
    max_lost_work: MaxLostWork = None,
    check: Check = True,
    as_json: AsJson = False,
) -> None:
    """Run a training command, and restart it after a failure.

    Holdfast records every training step. If the command fails, Holdfast reports why and, if it can, resumes from the last saved state. At the end, it reports whether the model learned.

    With a plan file (see `holdfast init`), all stages of the plan are run. Options on the command line override the
    plan.

    Exit status: 0 finished (learned, or learning could not be proven); 1 internal error; 2 usage error; 3 the model did
    not learn, or a check failed before training started; 4 training failed; 129 terminal closed during the checks; 130
    stopped by Ctrl-C; 143 stopped by SIGTERM or by the time budget.
    """
    from holdfast.launch.command_run import explicit_options, make_plan, supervise_new
    from holdfast.launch.plan_run import choose_device, is_plan_file, load_plan, passes_checks, supervise_plan
    from holdfast.storage.folder import refuse_bad_name, working_folder

    working_folder()
    refuse_bad_name(name)
    options = {
        "max_attempts": max_attempts,
        "on_finding": on_finding.value,
        "observe_only": observe_only,
        "checkpoint": checkpoint,
        "resume_with": resume_with,
        "on_event": on_event,
        "hang_after": hang_after,
        "backoff": backoff,
        "max_lost_work": max_lost_work,
        "rule": rule,
    }
    if is_plan_file(command):
        plan = load_plan(Path(command[0]), explicit_options(context, options))
        if check and not passes_checks(plan, as_json=as_json):
            raise typer.Exit(3)
        raise typer.Exit(supervise_plan(choose_device(plan), name=name, folder=folder, as_json=as_json))
    raise typer.Exit(supervise_new(make_plan(command, options), name=name, folder=folder, as_json=as_json))
