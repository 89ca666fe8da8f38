"""`holdfast resume`: resume a run that was interrupted or failed, or whose Holdfast process was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import options

Reference = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Name (NAME or NAME-N) or folder of a run (default: the newest run that was interrupted or failed, or whose Holdfast process was killed).",
    ),
]
Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PLAN.toml | -- COMMAND",
        help="The plan file, if you changed it; or the training command, which is required only if its arguments contain a secret, because secrets are not stored.",
    ),
]


def resume(
    context: typer.Context,
    reference: Reference = None,
    command: Command = None,
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
    as_json: options.AsJson = False,
) -> None:
    """Resume a run from its newest usable snapshot or checkpoint.

    New events are recorded in the same run folder. Options that are not given are as in the original run.

    Exit status: as for `holdfast run`.
    """
    from holdfast.launch.command_run import apply_options
    from holdfast.launch.plan_run import is_plan_file, load_changed_plan, resume_plan
    from holdfast.render.console import say
    from holdfast.storage.folder import find, stage_folders, working_folder
    from holdfast.storage.owners import refuse_foreign
    from holdfast.storage.plan_copy import read_plan
    from holdfast.supervisor.find_resumable import newest_resumable

    root = working_folder()
    if reference is not None:
        run = find(reference, root=root, notify=say)
    else:
        run = newest_resumable(root, say)
        say(f"resuming {run.name}, the newest run that can be resumed")
    refuse_foreign(run, stage_folders(run))
    given = options.given(context)
    if command and is_plan_file(command):
        plan = load_changed_plan(Path(command[0]), given)
    else:
        plan = read_plan(run, command or [], lambda plan: apply_options(plan, given))
    raise typer.Exit(resume_plan(run, plan, as_json=as_json))
