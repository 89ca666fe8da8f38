"""`holdfast diagnose`: what became of a run that Holdfast did not watch."""

from __future__ import annotations

from pathlib import Path

import typer


def diagnose(
    path: str = typer.Argument(
        ...,
        metavar="PATH|-",
        help="A run's folder, results.csv, metrics.csv, trainer_state.json, log or journal; - is stdin. A FIFO, as <(...), has 4 s to begin.",
    ),
    exit_code: int | None = typer.Option(
        None, "--exit-code", metavar="N", help="What the shell said of its end (echo $?): 137 is a kill, 134 an abort."
    ),
    report: Path | None = typer.Option(None, metavar="DIR", help="Write report.md and report.html into this folder."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Say what became of a run that Holdfast did not watch: findings, cause, what is not known, what to do next.

    Reads folders of Ultralytics, CSV logs of Lightning, states of Transformers, plain logs and Holdfast's own journals.
    Nothing in them is run or loaded. Exit status: 0 nothing fatal was found, 2 it is no record of a training, 3 fatal.
    """
    from holdfast.importers.diagnose import diagnose as judge
    from holdfast.render.diagnosis import show

    diagnosis = judge(None if path == "-" else Path(path), exit_code=exit_code)
    show(diagnosis, report=report, as_json=as_json)
    raise typer.Exit(diagnosis.exit_status)
