"""`holdfast run`: supervise a training command."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer


class OnFinding(str, Enum):
    act = "act"
    warn = "warn"


def run(
    context: typer.Context,
    command: list[str] = typer.Argument(
        ..., metavar="PLAN.toml | COMMAND", help="A plan file, or the training as you would start it."
    ),
    name: str | None = typer.Option(None, help="Name of the run; the script's name by default."),
    folder: Path | None = typer.Option(None, "--dir", help="The run folder itself; .holdfast/runs/NAME-N by default."),
    max_attempts: int = typer.Option(3, help="How often the training may be started in all."),
    on_finding: OnFinding = typer.Option(
        "act", help="What to do about a proven failure: stop the training, or only tell."
    ),
    observe_only: bool = typer.Option(
        False, "--observe-only", help="Watch and record; stop, restart and change nothing."
    ),
    checkpoint: str | None = typer.Option(None, metavar="GLOB", help="Where this command writes its checkpoints."),
    resume_with: str | None = typer.Option(
        None, metavar="ARGS", help='Arguments that make it go on, e.g. "--resume {checkpoint}".'
    ),
    on_event: str | None = typer.Option(
        None, metavar="CMD", help="A command of yours at start, finding, restart and end; gets JSON on its stdin."
    ),
    rule: list[str] = typer.Option(
        [],
        metavar="ID[.LIMIT]=VALUE",
        help="Set a rule for this run: ID=off|note|warn (says no more than that), or ID.LIMIT=NUMBER. May be repeated.",
    ),
    hang_after: float | None = typer.Option(
        None,
        metavar="SECONDS",
        help="Silence that may be a hang (default: 300, and ten times the longest pause so far).",
    ),
    backoff: float = typer.Option(
        2.0, metavar="SECONDS", help="Wait before the second attempt; doubled for each further one."
    ),
    max_lost_work: float | None = typer.Option(
        None,
        metavar="SECONDS",
        help="Work that a death may cost, where holdfast.guard takes snapshots (default: 120, within 1% of the time, or more once it has died).",
    ),
    check: bool = typer.Option(
        True, "--check/--no-check", help="Before a plan: whether its hours are worth starting (holdfast check)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON, as the last line of stdout."),
) -> None:
    """Run a training and keep it alive: watch every step, say why it died, go on from what it saved, end with a verdict.

    With a plan file (holdfast init writes one) it carries out all of its stages; options given here win over the plan's.

    Exit status: 0 finished, 2 usage, 3 not learned, 4 failed, 130 interrupted, 143 terminated.
    """
    from holdfast.launch.command_run import given, plan_for, supervise_new
    from holdfast.launch.plan_run import check_first, is_plan_file, plan_from, supervise_plan, with_a_device
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
        plan = plan_from(Path(command[0]), given(context, options))
        if check and not check_first(plan, as_json=as_json):
            raise typer.Exit(3)
        raise typer.Exit(supervise_plan(with_a_device(plan), name=name, folder=folder, as_json=as_json))
    raise typer.Exit(supervise_new(plan_for(command, options), name=name, folder=folder, as_json=as_json))
