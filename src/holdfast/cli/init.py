"""`holdfast init`: a plan for a data set and this machine."""

from __future__ import annotations

from pathlib import Path

import typer


def init(
    data: Path | None = typer.Argument(
        None, metavar="DATA.yaml", help="The data set; without it, the only data yaml in this folder."
    ),
    model: str = typer.Option("yolo11n.yaml", help="A .yaml to train from scratch, or a .pt to begin with."),
    out: Path = typer.Option(Path("plan.toml"), help="Where to write the plan."),
    force: bool = typer.Option(False, "--force", help="Write over a plan that is there."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Write a plan for a data set and this machine: two stages, a budget, every key explained. Then: holdfast run plan.toml

    Nothing is trained and nothing is downloaded. What must be mended before the plan can run is told.
    """
    from holdfast.launch.interrupts import ends_what_it_started
    from holdfast.preflight.init_plan import init as write
    from holdfast.render.plan_draft import show
    from holdfast.storage.folder import working_folder

    working_folder()
    with ends_what_it_started():
        written = write(data, model=model, out=out, force=force)
    show(written, as_json=as_json)
