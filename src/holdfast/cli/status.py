"""`holdfast status`: where a run stands."""

from __future__ import annotations

import typer


def status(
    reference: str | None = typer.Argument(
        None, metavar="RUN", help="A run's name, name-n or folder; the newest by default."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Say where a run stands: its step, loss, phase, attempts and findings."""
    from holdfast.render.console import say
    from holdfast.render.status import print_status, status_of
    from holdfast.storage.folder import find, working_folder

    print_status(status_of(find(reference, root=working_folder(), notify=say)), as_json=as_json)
