"""The disk is full.

**What it means.** The training process could not write a checkpoint, a cache or a log. A checkpoint that was being
written is truncated.

**How it appears.** The operating system reports `No space left on device`. If the disk fills up during `torch.save`,
the error is `PytorchStreamWriter failed writing file`, or `unexpected pos 128 vs 22` when the archive is closed
afterwards.

**What to do.** Free some disk space, then run `holdfast resume`. Holdfast does not restart the run by itself, because
it would fail the same way.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position
from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.testing.histories import TRACEBACK, ended

_PATTERNS = (
    r"No space left on device",
    r"Disk quota exceeded",
    r"PytorchStreamWriter failed writing file",
    r"enforce fail at inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
)


def _report(state: RunState, _failure: AttemptEnded, line: str) -> Finding | None:
    free = (
        [f"{state.attempt.memory.samples[-1].disk_free / 1e6:.0f} MB of disk space were free"]
        if state.attempt.memory.samples
        else []
    )
    return Finding(
        severity="fatal",
        message=f"The disk was full, and a file could not be written {describe_position(state.attempt)}.",
        evidence=[line, *free],
        remedies=["free some disk space, then: holdfast resume"],
    )


RULE = signature_rule(
    *_PATTERNS,
    report=_report,
    cause=75,
    cases=lambda: [
        Case("ENOSPC", "fatal", ended(1, words=[*TRACEBACK, "OSError: [Errno 28] No space left on device"])),
        Case(
            "during torch.save",
            "fatal",
            ended(
                1,
                words=[
                    *TRACEBACK,
                    "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 128 vs 22",
                ],
            ),
        ),
        Case(
            "a log file could not be written; the run succeeded",
            None,
            ended(0, words=["OSError: [Errno 28] No space left on device"]),
        ),
        Case("a different error", None, ended(1, words=[*TRACEBACK, "OSError: [Errno 2] No such file"])),
    ],
)
