"""`holdfast drill`: reproduce known failures on this machine, under the real supervisor."""

from __future__ import annotations

from pathlib import Path

import typer


def drill(
    name: str | None = typer.Argument(
        None, metavar="NAME|all", help="The drill to run. Without it, all drills are listed."
    ),
    folder: Path | None = typer.Option(None, "--dir", help="Folder for the runs (default: a temporary folder)."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Reproduce a known failure and show that it is detected.

    For example losses that are zero, a memory leak, a hang or a truncated checkpoint. Each drill runs a small training
    with an injected fault, most of them on a simulated accelerator, under the same supervisor as `holdfast run`.

    Exit status: 0 all drills passed, 1 a drill failed.
    """
    from holdfast.render.drills import print_list, print_outcomes
    from holdfast.simulator.drills import all_drills
    from holdfast.simulator.outcome import describe_drill
    from holdfast.simulator.runner import run_all, select_drills
    from holdfast.storage.folder import working_folder

    if name is None:
        print_list([describe_drill(drill) for drill in all_drills()], as_json=as_json)
        return
    working_folder()
    drills = select_drills(name)
    raise typer.Exit(print_outcomes(run_all(drills, folder), len(drills), in_full=name != "all", as_json=as_json))
