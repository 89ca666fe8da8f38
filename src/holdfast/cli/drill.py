"""`holdfast drill`: reproduce known failures on this machine, under the real supervisor."""

from __future__ import annotations

from pathlib import Path

import typer


def drill(
    name: str | None = typer.Argument(
        None, metavar="NAME|all", help="Drill to run, or all. If omitted, all drills are listed."
    ),
    folder: Path | None = typer.Option(
        None, "--dir", metavar="DIR", help="Folder for the run folders (default: a temporary folder)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Reproduce a known failure and show that it is detected.

    Examples: all-zero losses, a memory leak, a hang, a truncated checkpoint. Each drill trains a small model with an
    injected fault under the same supervisor as `holdfast run`. Most drills use a simulated accelerator.

    Exit status: 0 no drill failed; 1 a drill failed or internal error; 2 usage error.
    """
    from holdfast.render.drills import print_list, print_outcomes
    from holdfast.simulator.drills import DRILLS
    from holdfast.simulator.outcome import describe_drill
    from holdfast.simulator.runner import run_all, select_drills
    from holdfast.storage.folder import working_folder

    if name is None:
        print_list([describe_drill(drill) for drill in DRILLS], as_json=as_json)
        return
    working_folder()
    drills = select_drills(name)
    raise typer.Exit(print_outcomes(run_all(drills, folder), len(drills), in_full=name != "all", as_json=as_json))
