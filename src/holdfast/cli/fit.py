"""`holdfast fit`: measure what fits into the memory of this machine."""

from __future__ import annotations

from pathlib import Path

import typer


def fit(
    plan: Path = typer.Argument(
        ...,
        metavar="PLAN.toml",
        help="A plan that trains with Ultralytics. Only the stage with the most pixels per batch is tested.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Find a batch size and image size that fit into memory.

    Performs a few short runs in a scratch folder, which takes a few minutes. The recommended sizes are verified by a
    short run.

    Exit status: 0 at least one size fits; 1 internal error; 2 usage error; 3 nothing fits or a short run failed; 129
    terminal closed; 130 Ctrl-C; 143 SIGTERM.
    """
    from holdfast.launch.interrupts import terminate_helpers_on_signal
    from holdfast.preflight.batch_finder import find_what_fits
    from holdfast.preflight.cost_estimate import find_largest_stage
    from holdfast.render.batch_finder import print_answer, print_progress
    from holdfast.schema.errors import UsageError
    from holdfast.storage.folder import working_folder
    from holdfast.supervisor.load_plan import open_plan
    from holdfast.supervisor.stage_command import stage_plan, stages_of

    working_folder()
    opened = open_plan(plan)
    if opened.trainer != "ultralytics":
        raise UsageError(
            "holdfast fit supports only Ultralytics plans, and this plan runs a command.",
            next_step="write an Ultralytics plan: holdfast init DATA.yaml",
        )
    with terminate_helpers_on_signal():
        answer = find_what_fits(stage_plan(opened, stages_of(opened)[find_largest_stage(opened)]), print_progress)
    raise typer.Exit(print_answer(answer, as_json=as_json))
