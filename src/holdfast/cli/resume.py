"""`holdfast resume`: go on with a run whose supervisor is gone, or that was interrupted or failed."""

from __future__ import annotations

import typer


def resume(
    reference: str = typer.Argument(..., metavar="RUN", help="A run's name, name-n or folder."),
    command: list[str] | None = typer.Argument(
        None, metavar="COMMAND", help="The training again; only needed where its arguments held a secret."
    ),
    max_attempts: int | None = typer.Option(None, help="How many further attempts; as planned by default."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON, as the last line of stdout."),
) -> None:
    """Go on with a run from its journal and the newest checkpoint that is whole."""
    from pathlib import Path

    import msgspec

    from holdfast.cli.supervised import command_of, supervise_again
    from holdfast.record.folder import find
    from holdfast.words.plan import from_toml

    run = find(reference, root=Path.cwd())
    plan = from_toml(run.plan.read_text())
    plan = msgspec.structs.replace(
        plan, command=command_of(run, plan, command or []), max_attempts=max_attempts or plan.max_attempts
    )
    raise typer.Exit(supervise_again(run, plan, as_json=as_json))
