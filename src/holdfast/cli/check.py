"""`holdfast check`: test a training command before it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="PLAN.toml | COMMAND", help="A plan file, or the training command and its arguments."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="D",
        help="Device to check: cpu, mps, cuda, cuda:1 or auto (default: the device of the plan or command).",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DATA.yaml", help="Dataset to check (default: the dataset of the plan or command)."),
]
Seconds = Annotated[
    float,
    typer.Option(min=1.0, metavar="N", help="Time limit for all checks together, in seconds."),
]
Only = Annotated[
    list[str],
    typer.Option(metavar="ID", help="Run only this check, or all checks of this kind. Can be repeated."),
]
Skip = Annotated[
    list[str],
    typer.Option(metavar="ID", help="Skip this check, or all checks of this kind. Can be repeated."),
]
WriteSplit = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the suggested leak-free train/val split to this folder."),
]
Confine = Annotated[
    bool,
    typer.Option(
        "--confine/--no-confine", help="Whether to block writes by the dry run outside its scratch copy (Linux)."
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the results as JSON."),
]


def check(
    command: Command = None,
    device: Device = None,
    data: Data = None,
    seconds: Seconds = 300.0,
    only: Only = [],
    skip: Skip = [],
    write_split: WriteSplit = None,
    confine: Confine = True,
    as_json: AsJson = False,
) -> None:
    """Check a training command or a plan before you start it.

    Checks the environment, the data, the device, and whether the model can learn; estimates time, memory and disk
    space; and suggests what to do about each problem. docs/checks.md describes each check. The kinds of checks are
    environment, data, device, learning and forecast.

    The checks use the Python interpreter of your script, not Holdfast's own. A dry run executes the first training
    steps in a scratch copy of the working directory, with experiment trackers off. To skip it, use --skip device
    --skip learning --skip forecast.

    On Linux 5.19 or newer, the dry run and the processes that it starts can only write to the scratch copy, temporary
    folders and tool caches. On other systems, only Python code is prevented from changing existing files outside the
    scratch copy. Writes by native libraries and other programs are not blocked there, but files that changed in the
    working directory are reported afterwards. See docs/dry_run.md. For a supported framework, the forecast checks start a separate short run. It also uses a scratch folder, but
    its writes are not restricted.

    Exit status: 0 no fatal problem found (there may be warnings); 1 internal error; 2 usage error; 3 at least one fatal
    problem; 129 terminal closed; 130 Ctrl-C; 143 SIGTERM.
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
