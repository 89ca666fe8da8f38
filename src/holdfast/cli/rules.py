"""`holdfast rules`: the failures that Holdfast detects."""

from __future__ import annotations

import typer


def rules(
    rule: str | None = typer.Argument(None, metavar="ID", help="Rule to explain. If omitted, all rules are listed."),
    as_json: bool = typer.Option(False, "--json", help="Print the rules as JSON."),
) -> None:
    """List the failures that Holdfast detects, or explain one."""
    from holdfast.render.rules import print_rules

    print_rules(rule, as_json=as_json)
