"""`holdfast init`: write a plan for a dataset and this machine."""

from __future__ import annotations

from pathlib import Path

import typer


def init(
    data: Path | None = typer.Argument(
        None, metavar="DATA.yaml", help="Dataset (default: the only dataset YAML file in this directory)."
    ),
    model: str = typer.Option(
        None,
        metavar="FILE",
        help="A .yaml file to train from scratch, or a .pt file with initial weights (default: a small detector).",
    ),
    out: Path = typer.Option(Path("plan.toml"), metavar="FILE", help="File to write the plan to."),
    force: bool = typer.Option(False, "--force", help="Overwrite an existing plan."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Write a plan file for a dataset and this machine.

    The plan has two stages and a budget, and explains every key. Start it with: holdfast run plan.toml

    Nothing is trained or downloaded. Any problems that you must fix first are listed.

    Exit status: 0 the plan was written; 1 internal error; 2 usage error; 129 terminal closed; 130 Ctrl-C; 143 SIGTERM.
    """
    from holdfast.frameworks import default
    from holdfast.launch.interrupts import terminate_helpers_on_signal
    from holdfast.storage.folder import working_folder

    working_folder()
    with terminate_helpers_on_signal():
        default().write_plan(data, model=model, out=out, force=force, as_json=as_json)
