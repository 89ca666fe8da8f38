"""`holdfast run`: run a training command under supervision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options

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
Check = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Whether to run `holdfast check` before a plan is started."),
]


def run(
    context: typer.Context,
    command: Command,
    name: Name = None,
    folder: Folder = None,
    max_attempts: options.MaxAttempts = None,  # noqa: ARG001 - options.given reads it, and those below, from the context
    hours: options.Hours = None,  # noqa: ARG001
    on_finding: options.OnFinding = None,  # noqa: ARG001
    observe_only: options.ObserveOnly = None,  # noqa: ARG001
    checkpoint: options.Checkpoint = None,  # noqa: ARG001
    resume_with: options.ResumeWith = None,  # noqa: ARG001
    on_event: options.OnEvent = None,  # noqa: ARG001
    rule: options.Rule = None,  # noqa: ARG001
    hang_after: options.HangAfter = None,  # noqa: ARG001
    backoff: options.Backoff = None,  # noqa: ARG001
    max_lost_work: options.MaxLostWork = None,  # noqa: ARG001
    check: Check = True,
    as_json: options.AsJson = False,
) -> None:
    """Run a training command, and restart it after a failure.

    Holdfast records every training step. If the command fails, Holdfast reports why and, if it can, resumes from the
    last saved state. At the end, it reports whether the model learned.

    With a plan file (see `holdfast init`), all stages of the plan are run. Options on the command line override the
    plan.

    Exit status: 0 finished (learned, or learning could not be proven); 1 internal error; 2 usage error; 3 the model did
    not learn, or a check failed before training started; 4 training failed; 129 terminal closed during the checks; 130
    stopped by Ctrl-C; 143 stopped by SIGTERM or by the time budget.
    """
    from holdfast.launch.command_run import apply_options, supervise_new
    from holdfast.launch.plan_run import choose_device, is_plan_file, load_plan, passes_checks, supervise_plan
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import refuse_bad_name, working_folder

    cwd = working_folder()
    refuse_bad_name(name)
    given = options.given(context)
    if is_plan_file(command):
        plan = load_plan(Path(command[0]), given)
        if check and not passes_checks(plan, as_json=as_json):
            raise typer.Exit(3)
        raise typer.Exit(supervise_plan(choose_device(plan), name=name, folder=folder, as_json=as_json))
    plan = apply_options(Plan(cwd=str(cwd), command=command), given)
    raise typer.Exit(supervise_new(plan, name=name, folder=folder, as_json=as_json))
