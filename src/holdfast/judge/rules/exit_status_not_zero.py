"""The command ended with a status other than 0, and left no traceback.

**What it means.** It called `sys.exit` or `os._exit` with an error, a shell script or launcher passed one on, or its
arguments were wrong (status 2 is argparse's). Its last words are the only explanation there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.judge.death import death, exception_line, killed_by, where
from holdfast.judge.history import TRACEBACK, ended, started
from holdfast.judge.rule import Case, Rule
from holdfast.words import events
from holdfast.words.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.judge.picture import Picture


def judge(picture: Picture) -> Finding | None:
    gone = death(picture)
    if gone is None or gone.code is None or killed_by(gone) is not None or exception_line(gone) is not None:
        return None
    words = [line.strip() for line in gone.last_words if line.strip()][-3:]
    return Finding(
        rule="exit-status-not-zero",
        severity="fatal",
        message=f"The command ended with status {gone.code} {where(picture.attempt)}."
        + (f" Its last words: {words[-1]}" if words else " It said nothing."),
        evidence=[f"exit status {gone.code}", *words],
    )


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
