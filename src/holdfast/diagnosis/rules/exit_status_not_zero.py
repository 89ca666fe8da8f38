"""The command ended with a status other than 0, and left no traceback.

**What it means.** It called `sys.exit` or `os._exit` with an error, a shell script or launcher passed one on, or its
arguments were wrong (status 2 is argparse's), or its file is no Python (a SyntaxError has no traceback). Its last words are the only
explanation there is.

**What to do.** Mend what they say. Where it printed nothing, run the command by itself, and look in it for an exit without a word.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_line, find_failure, killed_by
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.shell_text import shell_joined
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import TRACEBACK, ended, started

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    if gone is None or gone.code is None or killed_by(gone) is not None or exception_line(gone) is not None:
        return None
    words = [line.strip() for line in gone.last_words if line.strip()]
    place = _place_of_a_syntax_error(words)
    in_place = f" ({place})" if place is not None else ""
    nothing = " It printed nothing." if state.attempt.started.pid else " Its last words are not recorded."
    return Finding(
        rule="exit-status-not-zero",
        severity="fatal",
        message=f"The command ended with status {gone.code} {describe_position(state.attempt)}."
        + (f" Its last words: {words[-1]}{in_place}" if words else nothing),
        evidence=[f"exit status {gone.code}", *([place] if place is not None else []), *words[-3:]],
        remedies=_remedies(state, words, place),
    )


def _place_of_a_syntax_error(words: list[str]) -> str | None:
    """Python names file and line above it, without a traceback."""
    if not words or not _SYNTAX.match(words[-1]):
        return None
    return next((line for line in reversed(words) if line.startswith('File "')), None)


def _remedies(state: RunState, words: list[str], place: str | None) -> list[str]:
    if place is not None:
        return [f"mend line: {place}"]
    command = shell_joined(state.attempt.started.command)
    alone = f"run it by itself and see what it does: {command}" if command else "run it by itself and see what it does"
    if words:
        return [f"mend what its last words say; if they do not tell, {alone}"]
    return [alone, "look in it for sys.exit, exit or os._exit with a status and no word; have it print why"]


RULE = Rule(
    id="exit-status-not-zero",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=10,
    cases=[
        Case(
            "wrong arguments",
            [*started(), *ended(2, last_step=0, words=["error: unrecognized arguments: --bogus"])],
            "fatal",
        ),
        Case("os._exit(3) in the middle", [*started(), *ended(3)], "fatal"),
        Case("a traceback explains it", [*started(), *ended(1, words=[*TRACEBACK, "ValueError: x"])], None),
        Case("a signal explains it", [*started(), *ended(137)], None),
        Case("nobody saw how it ended", [*started(), *ended(None)], None),
        Case("success", [*started(), *ended(0)], None),
    ],
)
