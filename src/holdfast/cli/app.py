"""The command line: one file per command, no logic."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

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
    help="Supervise PyTorch training runs: recover from failures, and verify that the model learned.",
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


class _Command(TyperCommand):
    """A command whose help lists its arguments without the names of Python types."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        for param in params:
            if param.param_type_name == "argument":
                vars(param)["display_type_rich"] = lambda ctx: None  # noqa: ARG005 - the signature of typer
        return params


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
    app.command(cls=_Command, context_settings=settings, help=read_help(command))(command)
