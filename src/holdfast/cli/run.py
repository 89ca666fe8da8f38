"""`holdfast run`: run a training under supervision."""

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
        ..., metavar="PLAN.toml | COMMAND", help="A plan file, or the training command."
    ),
    name: str | None = typer.Option(None, help="Name of the run (default: the name of the script)."),
    folder: Path | None = typer.Option(None, "--dir", help="Run folder (default: .holdfast/runs/NAME-N)."),
    max_attempts: int = typer.Option(3, help="Maximum number of times to start the training."),
    on_finding: OnFinding = typer.Option(
        "act", help="What to do about a proven failure: act (stop the training) or only warn."
    ),
    observe_only: bool = typer.Option(
        False, "--observe-only", help="Only watch and record; never stop, restart or change anything."
    ),
    checkpoint: str | None = typer.Option(
        None, metavar="GLOB", help="Glob pattern for the checkpoints of the command."
    ),
    resume_with: str | None = typer.Option(
        None, metavar="ARGS", help='Arguments to resume, e.g. "--resume {checkpoint}".'
    ),
    on_event: str | None = typer.Option(
        None, metavar="CMD", help="Command to run at start, finding, restart and end; it receives JSON on stdin."
    ),
    rule: list[str] = typer.Option(
        [],
        metavar="ID[.LIMIT]=VALUE",
        help="Configure a rule: ID=off|note|warn sets its highest severity, ID.LIMIT=NUMBER a limit. May be repeated.",
    ),
    hang_after: float | None = typer.Option(
        None,
        metavar="SECONDS",
        help="Time without progress that counts as a possible hang (default: 300, and at least ten times the longest pause so far).",
    ),
    backoff: float = typer.Option(
        2.0, metavar="SECONDS", help="Wait before the second attempt; doubled for each further attempt."
    ),
    max_lost_work: float | None = typer.Option(
        None,
        metavar="SECONDS",
        help="Work that a crash may cost, if holdfast.guard takes snapshots (default: 120; snapshots take at most 1% of the time, or more after a crash).",
    ),
    check: bool = typer.Option(True, "--check/--no-check", help="Run `holdfast check` before a plan is started."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON on the last line of stdout."),
) -> None:
    """Run a training, restart it after crashes and judge the result.

    Holdfast watches every step. If the training crashes, it reports why and resumes from the last saved state. At the
    end it gives a verdict.

    With a plan file (see holdfast init), all stages of the plan are run. Options on the command line override the plan.

    Exit status: 0 finished, 2 usage, 3 not learned, 4 failed, 130 interrupted, 143 terminated.
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
