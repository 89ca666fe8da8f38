"""`holdfast check`: test a training before it is started."""

from __future__ import annotations

from pathlib import Path

import typer


def check(
    command: list[str] | None = typer.Argument(
        None, metavar="[PLAN.toml | COMMAND]", help="A plan file, or the training command."
    ),
    device: str | None = typer.Option(
        None, metavar="D", help="cpu, mps, cuda, cuda:1 or auto (default: that of the plan)."
    ),
    data: Path | None = typer.Option(
        None, metavar="DATA.yaml", help="The data set, if the plan or command does not name it."
    ),
    seconds: float = typer.Option(300.0, min=1.0, metavar="N", help="Time limit for all checks together."),
    only: list[str] = typer.Option([], metavar="ID", help="Run only this check or kind of check. May be repeated."),
    skip: list[str] = typer.Option([], metavar="ID", help="Skip this check or kind of check. May be repeated."),
    write_split: Path | None = typer.Option(
        None, metavar="DIR", help="If a split without leaks is suggested, write it to this folder."
    ),
    confine: bool = typer.Option(
        True, "--confine/--no-confine", help="Prevent the dry run from writing outside its scratch copy (Linux)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Check a training before starting it.

    Checks the environment, the data, the device and the learning, and suggests what to do about each problem. The
    checks use the Python of the training, not that of Holdfast. A dry run executes the first steps of the training in a
    scratch copy of its folder, with experiment trackers off. To skip it: --skip device --skip learning --skip forecast.

    On Linux 5.19 or newer, the dry run and the processes it starts can only write to the scratch copy, temporary
    folders and the caches of tools. On other systems, Python is prevented from changing your files. Writes by libraries
    and other programs are not prevented there; the folder is checked for them afterwards. See docs/dry_run.md. The
    short trial of a plan (forecast) writes to a scratch folder and is not confined.

    Exit status: 0 no problem found (read the warnings), 2 usage, 3 the training would fail or not learn, 129, 130 and
    143 interrupted (processes started by the check are terminated first).
    """
    from holdfast.launch.interrupts import terminate_helpers_on_signal
    from holdfast.launch.plan_run import is_plan_file
    from holdfast.preflight.checks.runner import check as run_checks
    from holdfast.render.checks import ChecksProgress, show
    from holdfast.storage.folder import working_folder
    from holdfast.supervisor.load_plan import open_plan

    working_folder()
    words = command or []
    planned = is_plan_file(words)
    with terminate_helpers_on_signal(), ChecksProgress() as progress:
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
