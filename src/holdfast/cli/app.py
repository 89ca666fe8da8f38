"""The command line: one file per command, no logic."""

from __future__ import annotations

import typer

import holdfast
from holdfast.cli.check import check
from holdfast.cli.diagnose import diagnose
from holdfast.cli.drill import drill
from holdfast.cli.fit import fit
from holdfast.cli.init import init
from holdfast.cli.report import report
from holdfast.cli.resume import resume
from holdfast.cli.rules import rules
from holdfast.cli.run import run
from holdfast.cli.status import status
from holdfast.render.console import print_line
from holdfast.schema.pages import read_help

app = typer.Typer(
    name="holdfast",
    help="Supervise PyTorch trainings: runs that finish and prove that they learned.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print_line(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


PASS_THROUGH = {"allow_interspersed_args": False}
"""Everything after the first word of the training command belongs to it, with or without `--`."""

for command, settings in (
    (run, PASS_THROUGH),
    (init, {}),
    (check, PASS_THROUGH),
    (status, {}),
    (fit, {}),
    (resume, {}),
    (rules, {}),
    (drill, {}),
    (report, {}),
    (diagnose, {}),
):
    app.command(context_settings=settings, help=read_help(command))(command)
