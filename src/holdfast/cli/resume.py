"""`holdfast resume`: resume a run that was interrupted or failed, or whose Holdfast process was killed."""

from __future__ import annotations

from pathlib import Path

import typer

AS_BEFORE = "See `holdfast run` (default: as in the original run)."


def resume(
    reference: str | None = typer.Argument(
        None,
        metavar="RUN",
        help="Name (NAME or NAME-N) or folder of a run (default: the newest run that was interrupted or failed, or whose Holdfast process was killed).",
    ),
    command: list[str] | None = typer.Argument(
        None,
        metavar="PLAN.toml | -- COMMAND",
        help="The plan file, if you changed it; or the training command, which is required only if its arguments contain a secret, because secrets are not stored.",
    ),
    checkpoint: str | None = typer.Option(None, metavar="GLOB", help=AS_BEFORE),
    resume_with: str | None = typer.Option(None, metavar="ARGS", help=AS_BEFORE),
    on_event: str | None = typer.Option(None, metavar="CMD", help=AS_BEFORE),
    max_attempts: int | None = typer.Option(
        None, metavar="N", help="Maximum number of further attempts (default: as in the original run)."
    ),
    hours: float | None = typer.Option(
        None, min=0.0, metavar="N", help="Time limit for the whole run, in hours; overrides the plan."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON on the last line of stdout."),
) -> None:
    """Resume a run from its newest usable snapshot or checkpoint.

    New events are recorded in the same run folder.

    Exit status: as for `holdfast run`.
    """
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
    if command and is_plan_file(command):
        plan = load_changed_plan(Path(command[0]), attempts=max_attempts, hours=hours)
    else:
        plan = read_plan(
            run,
            command or [],
            attempts=max_attempts,
            hours=hours,
            checkpoint=checkpoint,
            resume_with=resume_with,
            on_event=on_event,
        )
    raise typer.Exit(resume_plan(run, plan, as_json=as_json))
