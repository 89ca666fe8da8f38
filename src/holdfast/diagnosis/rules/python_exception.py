"""The training ended with a Python exception.

**What it means.** The training code, or a library, raised an exception that was not caught. The traceback is in the
attempt's stderr.log.

**What to do.** An exception before the first step is a mistake in the command, the code or the data: Holdfast does not
retry. After the first step it retries, and gives up if the same exception occurs again without progress in between.
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
    end = find_failure(state)
    if end is None or killed_by(end) is not None:
        return None
    line = exception_line(end)
    if line is None:
        return None
    frames = frames_of(end)
    own = own_frame(frames)
    if own is not None:
        remedies = [f"fix this line: {own}" if own is frames[-1] else f"fix the call that leads to it: {own}"]
    else:
        remedies = [
            f"none of your code is in the traceback; fix the command or the data: {line}",
            "or search the library's issues for this message",
        ]
    return Finding(
        rule="python-exception",
        severity="fatal",
        message=f"The training raised an exception {describe_position(state.attempt)}: {line}",
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
            "during training",
            [*started(), *trains(), *losses(1.0), *ended(1, words=[*TRACEBACK, "ValueError: bad shape"])],
            "fatal",
        ),
        Case(
            "a message with several lines",
            [*started(), *ended(1, words=[*TRACEBACK, "RuntimeError: one", "two"])],
            "fatal",
        ),
        Case(
            "the traceback of a rank under torchrun",
            [*started(), *ended(1, words=[f"[rank0]: {line}" for line in (*TRACEBACK, "ValueError: bad shape")])],
            "fatal",
        ),
        Case(
            "a traceback was printed and the command succeeded",
            [*started(), *ended(0, words=[*TRACEBACK, "ValueError: x"])],
            None,
        ),
        Case("sys.exit(3) without a traceback", [*started(), *ended(3)], None),
    ],
)
