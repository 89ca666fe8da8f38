"""`holdfast rules`: what Holdfast knows to look for."""

from __future__ import annotations

import typer


def rules(
    rule: str | None = typer.Argument(None, metavar="ID", help="One rule, explained."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the rules, or explain one."""
    from holdfast.render.rules import print_rules

    print_rules(rule, as_json=as_json)
