"""`holdfast check`: whether the next ten hours are worth starting."""

from __future__ import annotations

from pathlib import Path

import typer


def check(
    command: list[str] | None = typer.Argument(
        None, metavar="[PLAN.toml | COMMAND]", help="A plan file, or the training as you would start it."
    ),
    device: str | None = typer.Option(None, metavar="D", help="cpu, mps, cuda, cuda:1, auto; as planned by default."),
    data: Path | None = typer.Option(
        None, metavar="DATA.yaml", help="The data set, where plan or command do not tell."
    ),
    seconds: float = typer.Option(300.0, min=1.0, metavar="N", help="For all checks together."),
    only: list[str] = typer.Option([], metavar="ID", help="Only this check, or this kind of check. May be repeated."),
    skip: list[str] = typer.Option([], metavar="ID", help="Not this check, or this kind of check. May be repeated."),
    write_split: Path | None = typer.Option(
        None, metavar="DIR", help="Write a split without leaks into this folder, where one is proposed."
    ),
    confine: bool = typer.Option(
        True, "--confine/--no-confine", help="Keep the dry run from writing outside of its scratch copy (Linux)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Say before hours are spent whether they are worth it: environment, data, device and learning, each with what to do.

    The training's own Python is asked, not Holdfast's. The training itself is dry-run: its first steps, in a scratch copy of
    its folder, with trackers off (leave it out: --skip device --skip learning --skip forecast).

    On Linux 5.19 or newer the dry run, and all that it starts, cannot write outside of the scratch copy, temporary folders and the tools' caches;
    elsewhere Python is kept from changing files of yours, and what libraries and other programs write is not prevented, but
    looked for in the folder afterwards. Details: docs/dry_run.md. The short trial of a plan (forecast) writes to a scratch folder, and is not confined.

    Exit status: 0 nothing speaks against it (read the warnings), 2 usage, 3 it would fail or learn nothing, 129, 130 and 143
    interrupted: what it started is ended first.
    """
    from holdfast.launch.interrupts import ends_what_it_started
    from holdfast.launch.plan_run import is_plan_file
    from holdfast.preflight.checks.runner import check as run_checks
    from holdfast.render.checks import ChecksProgress, show
    from holdfast.storage.folder import working_folder
    from holdfast.supervisor.load_plan import open_plan

    working_folder()
    words = command or []
    planned = is_plan_file(words)
    with ends_what_it_started(), ChecksProgress() as progress:
        report = run_checks(
            command=[] if planned else words,
            plan=open_plan(Path(words[0])) if planned else None,
            device=device,
            data=data,
            write_split=write_split,
            confine_writes=confine,
            only=only,
            skip=skip,
            seconds=seconds,
            progress=progress,
        )
    show(report, as_json=as_json)
    raise typer.Exit(report.exit_status)
