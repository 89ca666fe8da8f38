"""`holdfast fit`: what fits into this machine's memory, measured."""

from __future__ import annotations

from pathlib import Path

import typer


def fit(
    plan: Path = typer.Argument(..., metavar="PLAN.toml", help="A plan of Ultralytics; its largest stage is tried."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Say which batch and image size fit into memory here, from a few short trials in a scratch folder. Takes some minutes.

    What is recommended was tried for real. Exit status: 0 something fits, 2 usage, 3 nothing does, or a trial did not run.
    """
    from holdfast.launch.interrupts import ends_what_it_started
    from holdfast.preflight.batch_finder import find_what_fits
    from holdfast.preflight.cost_estimate import find_largest_stage
    from holdfast.render.batch_finder import print_answer, print_progress
    from holdfast.schema.errors import UsageError
    from holdfast.storage.folder import working_folder
    from holdfast.supervisor.load_plan import open_plan
    from holdfast.supervisor.stage_command import stage_plan, stages_of

    working_folder()
    asked = open_plan(plan)
    if asked.trainer != "ultralytics":
        raise UsageError(
            "Only trainings of Ultralytics can be tried out, and this plan has a command of its own.",
            next_step="holdfast init DATA.yaml writes a plan that can",
        )
    with ends_what_it_started():
        answer = find_what_fits(stage_plan(asked, stages_of(asked)[find_largest_stage(asked)]), print_progress)
    raise typer.Exit(print_answer(answer, as_json=as_json))
