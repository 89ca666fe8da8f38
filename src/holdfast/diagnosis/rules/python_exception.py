"""The training ended with a Python exception.

**What it means.** The code itself, or a library, raised and nobody caught it. The traceback is in the attempt's stderr.log.

**What to do.** An exception before the first step is a mistake in the command, the code or the data: Holdfast does not try
again. After the first step it tries again, and gives up when the same exception comes with no progress in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_line, find_failure, frames_of, killed_by, own_frame
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import TRACEBACK, ended, losses, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    if gone is None or killed_by(gone) is not None:
        return None
    line = exception_line(gone)
    if line is None:
        return None
    frames = frames_of(gone)
    own = own_frame(frames)
    if own is not None:
        remedies = [f"mend line: {own}" if own is frames[-1] else f"mend what leads to it: {own}"]
    else:
        remedies = [
            f"no line of yours is in its traceback; mend what it says, in the command or the data: {line}",
            "or look for its message among the library's issues",
        ]
    return Finding(
        rule="python-exception",
        severity="fatal",
        message=f"The training raised {describe_position(state.attempt)}: {line}",
        evidence=[line, *dict.fromkeys(([own] if own is not None else []) + frames[-2:])],
        remedies=remedies if frames else [],
    )


RULE = Rule(
    id="python-exception",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=40,
    cases=[
        Case(
            "in the middle",
            [*started(), *trains(), *losses(1.0), *ended(1, words=[*TRACEBACK, "ValueError: bad shape"])],
            "fatal",
        ),
        Case(
            "a message of many lines", [*started(), *ended(1, words=[*TRACEBACK, "RuntimeError: one", "two"])], "fatal"
        ),
        Case(
            "a rank, as torch writes it under torchrun",
            [*started(), *ended(1, words=[f"[rank0]: {line}" for line in (*TRACEBACK, "ValueError: bad shape")])],
            "fatal",
        ),
        Case("printed a traceback, ended well", [*started(), *ended(0, words=[*TRACEBACK, "ValueError: x"])], None),
        Case("sys.exit(3) without one", [*started(), *ended(3)], None),
    ],
)
