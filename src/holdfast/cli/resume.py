"""`holdfast resume`: go on with a run whose supervisor is gone, or that was interrupted or failed."""

from __future__ import annotations

import typer


def resume(
    reference: str | None = typer.Argument(
        None,
        metavar="RUN",
        help="A run's name, name-n or folder; by default the newest that was interrupted, has failed or lost its supervisor.",
    ),
    command: list[str] | None = typer.Argument(
        None,
        metavar="[PLAN.toml | -- COMMAND]",
        help="The plan with what you changed in it; or the training again, where its arguments held a secret.",
    ),
    checkpoint: str | None = typer.Option(None, metavar="GLOB", help="As for `run`; as planned by default."),
    resume_with: str | None = typer.Option(None, metavar="ARGS", help="As for `run`; as planned by default."),
    on_event: str | None = typer.Option(None, metavar="CMD", help="As for `run`; as planned by default."),
    max_attempts: int | None = typer.Option(None, help="How many further attempts; as planned by default."),
    hours: float | None = typer.Option(None, min=0.0, help="Time for the whole run, over what the plan gives it."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON, as the last line of stdout."),
) -> None:
    """Go on with a run from its journal and the newest checkpoint that is whole."""
    from pathlib import Path

    from holdfast.launch.plan_run import is_plan_file, plan_again, plan_changed
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
        say(f"going on with {run.name}, the newest run that can be resumed")
    refuse_foreign(run, stage_folders(run))
    if command and is_plan_file(command):
        plan = plan_changed(Path(command[0]), attempts=max_attempts, hours=hours)
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
    raise typer.Exit(plan_again(run, plan, as_json=as_json))
