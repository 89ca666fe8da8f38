"""`holdfast fit`: measure what fits into the memory of this machine."""

from __future__ import annotations

from pathlib import Path

import typer


def fit(
    plan: Path = typer.Argument(
        ...,
        metavar="PLAN.toml",
        help="A plan for a supported framework. Only the stage with the most pixels per batch is tested.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Find a batch size and image size that fit into memory.

    Performs a few short runs in a scratch folder, which takes a few minutes. A short run verifies the recommended sizes.

    Exit status: 0 at least one size fits; 1 internal error; 2 usage error; 3 nothing fits or a short run failed; 129
    terminal closed; 130 Ctrl-C; 143 SIGTERM.
    """
    from holdfast.frameworks import by_name
    from holdfast.launch.interrupts import terminate_helpers_on_signal
    from holdfast.storage.folder import working_folder
    from holdfast.supervisor.load_plan import open_plan

    working_folder()
    opened = open_plan(plan)
    with terminate_helpers_on_signal():
        status = by_name(opened.trainer).fit(opened, as_json=as_json)
    raise typer.Exit(status)
