"""`holdfast fit`: what fits into this machine's memory, measured."""

from __future__ import annotations

from pathlib import Path

import typer


def fit(
    plan: Path = typer.Argument(..., metavar="PLAN.toml", help="A plan of Ultralytics; its last stage is measured."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Say which batch and picture size fit into memory here, from two or three short trials. Takes about a minute."""
    from holdfast.act.fitting import what_fits
    from holdfast.act.stage_plan import stage_plan, stages_of
    from holdfast.record.plan_reading import read
    from holdfast.show.fitting import print_answer, teller

    asked = read(plan)
    answer = what_fits(stage_plan(asked, stages_of(asked)[-1]), teller())
    raise typer.Exit(print_answer(answer, as_json=as_json))
