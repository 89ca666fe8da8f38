"""`holdfast report`: what a run came to, as a page and as text."""

from __future__ import annotations

import typer


def report(
    reference: str | None = typer.Argument(
        None, metavar="RUN", help="A run's name, name-n or folder; the newest by default."
    ),
    compare: str | None = typer.Option(None, metavar="RUN", help="Compare with this run, for example one that works."),
    open_it: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    as_json: bool = typer.Option(False, "--json", help="Print what the report says as JSON."),
) -> None:
    """Write report.md and report.html of a run: what happened, why, what it cost, what to do next."""
    from holdfast.render.console import say
    from holdfast.render.report.command import make_report
    from holdfast.storage.folder import find, working_folder

    root = working_folder()
    other = find(compare, root=root) if compare is not None else None
    make_report(find(reference, root=root, notify=say), other=other, open_it=open_it, as_json=as_json)
