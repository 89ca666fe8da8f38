"""`holdfast status`: show the state of a run."""

from __future__ import annotations

import typer


def status(
    reference: str | None = typer.Argument(
        None, metavar="RUN", help="Name (NAME or NAME-N) or folder of a run (default: the newest run)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the status as JSON."),
) -> None:
    """Show the step, loss, phase, attempts and findings of a run."""
    from holdfast.render.console import say
    from holdfast.render.status import print_status, status_of
    from holdfast.storage.folder import find, working_folder

    print_status(status_of(find(reference, root=working_folder(), notify=say)), as_json=as_json)
