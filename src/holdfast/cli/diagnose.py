"""`holdfast diagnose`: analyze a run that Holdfast did not supervise."""

from __future__ import annotations

from pathlib import Path

import typer


def diagnose(
    path: str = typer.Argument(
        ...,
        metavar="PATH|-",
        help="Run folder, results.csv, metrics.csv, trainer_state.json, log file or Holdfast journal; - reads stdin. A FIFO such as <(...) must send data within 4 s.",
    ),
    exit_code: int | None = typer.Option(
        None,
        "--exit-code",
        metavar="N",
        help="Exit status of the training command (echo $?): 137 means SIGKILL, 134 SIGABRT.",
    ),
    report: Path | None = typer.Option(None, metavar="DIR", help="Write report.md and report.html to this folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the diagnosis as JSON."),
) -> None:
    """Analyze the logs of a run that Holdfast did not supervise.

    Reports findings, the cause of a failure, what is unknown, and what to do next. Reads Ultralytics run folders,
    Lightning CSV logs, Transformers trainer states, plain logs and Holdfast journals. Nothing in them is executed or
    unpickled.

    Exit status: 0 no fatal finding; 1 internal error; 2 usage error or unrecognized input; 3 at least one fatal finding.
    """
    from holdfast.importers.diagnose import diagnose as judge
    from holdfast.render.diagnosis import show

    diagnosis = judge(None if path == "-" else Path(path), exit_code=exit_code)
    show(diagnosis, report=report, as_json=as_json)
    raise typer.Exit(diagnosis.exit_status)
