"""The command exited with a status other than 0, without a traceback.

**What it means.** The command called `sys.exit` or `os._exit` with an error, a shell script or launcher passed on the
error of another program, the arguments were wrong (argparse exits with status 2), or the script has a syntax error. The
last lines of the output are the only available explanation.

**What to do.** Fix the error shown in the last lines of the output. If the command printed nothing, run it without
Holdfast, and look for code that exits without a message.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, exception_line, find_failure, killed_by
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.schema.shell_text import shell_join
from holdfast.testing.histories import TRACEBACK, ended

_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    if failure is None or failure.code is None or killed_by(failure) is not None or exception_line(failure) is not None:
        return None
    lines = [line.strip() for line in failure.last_lines if line.strip()]
    location = _find_syntax_error(lines)
    in_file = f" ({location})" if location is not None else ""
    no_output = " It printed nothing." if state.attempt.started.pid else " Its output was not recorded."
    return Finding(
        severity="fatal",
        message=f"The command exited with status {failure.code} {describe_position(state.attempt)}."
        + (f" Last output: {lines[-1]}{in_file}" if lines else no_output),
        evidence=[f"exit status {failure.code}", *([location] if location is not None else []), *lines[-3:]],
        remedies=_remedies(state, lines, location),
    )


def _find_syntax_error(lines: list[str]) -> str | None:
    """Return the line with file and line number that Python prints above a syntax error, without a traceback."""
    if not lines or not _SYNTAX.match(lines[-1]):
        return None
    return next((line for line in reversed(lines) if line.startswith('File "')), None)


def _remedies(state: RunState, lines: list[str], location: str | None) -> list[str]:
    if location is not None:
        return [f"fix the syntax error: {location}"]
    command = shell_join(state.attempt.started.command)
    run_alone = f"run the command directly: {command}" if command else "run the command directly"
    if lines:
        return [f"fix the error shown in the last lines of the output; if they do not explain it, {run_alone}"]
    return [
        run_alone,
        "look for a call of sys.exit(), exit() or os._exit() without a message, and print the reason there",
    ]


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=10,
    fails_again=True,
    cases=lambda: [
        Case("wrong arguments", "fatal", ended(2, last_step=0, words=["error: unrecognized arguments: --bogus"])),
        Case("os._exit(3) during training", "fatal", ended(3)),
        Case("a traceback explains it", None, ended(1, words=[*TRACEBACK, "ValueError: x"])),
        Case("a signal explains it", None, ended(137)),
        Case("the exit status is unknown", None, ended(None)),
        Case("success", None, ended(0)),
    ],
)
