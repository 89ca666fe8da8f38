"""`holdfast drill`: known failures, reproduced on this machine, against the real supervisor."""

from __future__ import annotations

from pathlib import Path

import typer


def drill(
    name: str | None = typer.Argument(None, metavar="NAME|all", help="Which drill to run; without it they are listed."),
    folder: Path | None = typer.Option(
        None, "--dir", help="Where the drills' run folders go; a temporary folder by default."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Reproduce a known failure and show that it is caught: losses that are zero, a leak, a hang, a truncated checkpoint, ...

    Every drill runs a small training whose fault is injected, most of them on a simulated accelerator, under the same
    supervisor as `holdfast run`. Exit status: 0 when all that ran have passed, 1 when one failed.
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
