"""The script ended with a Python exception.

**What it means.** Your code, or a library, raised an exception that was not caught.

**What to do.** Read the traceback in `attempts/N/stderr.log` in the run folder, fix the error, and run `holdfast
resume`. Holdfast does not retry after an exception before the first step, because it is probably an error in the
command, the code or the data. After the first step it retries, and gives up if the attempt fails in the same way again
without progress in between.

**Severity.** It is always reported as `fatal`.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, exception_line, find_failure, frames_of, killed_by, own_frame
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import TRACEBACK, ended, losses, trains


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
        severity="fatal",
        message=f"The script raised an exception {describe_position(state.attempt)}: {line}",
        evidence=[line, *dict.fromkeys(([own] if own is not None else []) + frames[-2:])],
        remedies=remedies if frames else [],
    )


RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=40,
    fails_again=True,
    cases=lambda: [
        Case("during training", "fatal", trains(), losses(1.0), ended(1, words=[*TRACEBACK, "ValueError: bad shape"])),
        Case("a message with several lines", "fatal", ended(1, words=[*TRACEBACK, "RuntimeError: one", "two"])),
        Case(
            "the traceback of a rank under torchrun",
            "fatal",
            ended(1, words=[f"[rank0]: {line}" for line in (*TRACEBACK, "ValueError: bad shape")]),
        ),
        Case("a traceback was printed and the command succeeded", None, ended(0, words=[*TRACEBACK, "ValueError: x"])),
        Case("sys.exit(3) without a traceback", None, ended(3)),
    ],
)
