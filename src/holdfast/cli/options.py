"""The options that `holdfast run` and `holdfast resume` share. An option that is not given is None: the plan's value applies."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

SHARED = (
    *("max_attempts", "hours", "on_finding", "observe_only", "checkpoint", "resume_with", "on_event"),
    *("rule", "hang_after", "backoff", "max_lost_work"),
)


def given(context: typer.Context) -> dict[str, Any]:
    """Return the shared options that are on the command line."""
    values = {name: context.params[name] for name in SHARED}
    return {name: value for name, value in values.items() if value is not None and value != []}


class OnFindingChoice(str, Enum):
    act = "act"
    warn = "warn"


MaxAttempts = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Maximum number of times to start training, for each stage of a plan (default: 10)."
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="N", help="Time limit for the whole run, in hours (default: none)."),
]
OnFinding = Annotated[
    OnFindingChoice | None,
    typer.Option(
        help="What to do about a fatal finding: act (the default) stops training, and restarts it if a remedy is known or a restart can help; warn only reports the finding."
    ),
]
ObserveOnly = Annotated[
    bool | None,
    typer.Option("--observe-only", help="Only watch and record; never stop, restart or change anything."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="GLOB", help="Glob pattern for the checkpoint files that the command writes."),
]
ResumeWith = Annotated[
    str | None,
    typer.Option(
        metavar="ARGS",
        help='Arguments to append to the command when resuming, e.g. "--resume {checkpoint}"; {checkpoint} is replaced with the path.',
    ),
]
OnEvent = Annotated[
    str | None,
    typer.Option(
        metavar="CMD",
        help="Command to run when the run starts, restarts or ends, a stage ends, or a warn or fatal finding is reported; it receives JSON on stdin.",
    ),
]
Rule = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID[.LIMIT]=VALUE",
        help="Configure a rule: ID=off|note|warn limits its severity; ID.LIMIT=NUMBER changes one of its limits (see `holdfast rules ID`). Can be repeated.",
    ),
]
HangAfter = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time without progress after which Holdfast checks whether training has hung (default: 300; 900 before the first step). It is never less than ten times the longest pause so far.",
    ),
]
Backoff = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time to wait before the second attempt (default: 2); doubled for each further attempt, up to 60, until an attempt makes progress.",
    ),
]
MaxLostWork = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Maximum training time that a crash may lose, if snapshots are taken (default: 120, or more if snapshots are expensive). If you set a value, it applies regardless of the cost of a snapshot.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the summary as JSON on the last line of stdout."),
]
