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
    from holdfast.record.folder import find, working_folder
    from holdfast.show.console import say
    from holdfast.show.status import print_status, status_of

    print_status(status_of(find(reference, root=working_folder(), tell=say)), as_json=as_json)
