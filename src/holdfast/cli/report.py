"""`holdfast report`: write a report about a run, as HTML and as Markdown."""

from __future__ import annotations

import typer


def report(
    reference: str | None = typer.Argument(
        None, metavar="RUN", help="Name (NAME or NAME-N) or folder of a run (default: the newest run)."
    ),
    compare: str | None = typer.Option(
        None, metavar="RUN", help="Compare with this run, for example one that succeeded."
    ),
    open_it: bool = typer.Option(False, "--open", help="Open the report in a browser."),
    as_json: bool = typer.Option(False, "--json", help="Print the contents of the report as JSON."),
) -> None:
    """Write a report about a run: report.md and report.html.

    The report states what happened, why, what it cost, and what to do next.

    Exit status: 0 the report was written; 1 internal error; 2 usage error.
    """
    from holdfast.render.console import say
    from holdfast.render.report.command import make_report
    from holdfast.storage.folder import find, working_folder

    root = working_folder()
    other = find(compare, root=root) if compare is not None else None
    make_report(find(reference, root=root, notify=say), other=other, open_it=open_it, as_json=as_json)
