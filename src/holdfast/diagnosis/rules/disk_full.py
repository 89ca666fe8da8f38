"""The disk is full.

**What it means.** The training could not write: a checkpoint, a cache, a log. A checkpoint that was being written is torn.

**Why the words differ.** `No space left on device` is the system's; a full disk in the middle of a `torch.save` shows as
`PytorchStreamWriter failed writing file`, or as `unexpected pos 128 vs 22` where the archive is closed after that.

**What to do.** Make room, then `holdfast resume`. Holdfast does not start again by itself: it would fail the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import TRACEBACK, ended, started

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = (
    r"No space left on device",
    r"Disk quota exceeded",
    r"PytorchStreamWriter failed writing file",
    r"enforce fail at inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
)


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *_WORDS) if gone is not None else None
    if gone is None or words is None:
        return None
    left = (
        [f"{state.attempt.memory.samples[-1].disk_free / 1e6:.0f} MB were free"] if state.attempt.memory.samples else []
    )
    return Finding(
        rule="disk-full",
        severity="fatal",
        message=f"The training could not write, because the disk is full, {describe_position(state.attempt)}.",
        evidence=[words, *left],
        remedies=["make room on the disk, then: holdfast resume"],
    )


RULE = Rule(
    id="disk-full",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=75,
    cases=[
        Case(
            "ENOSPC",
            [*started(), *ended(1, words=[*TRACEBACK, "OSError: [Errno 28] No space left on device"])],
            "fatal",
        ),
        Case(
            "in the middle of torch.save",
            [
                *started(),
                *ended(
                    1,
                    words=[
                        *TRACEBACK,
                        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 128 vs 22",
                    ],
                ),
            ],
            "fatal",
        ),
        Case(
            "a log file could not be written; the run went well",
            [*started(), *ended(0, words=["OSError: [Errno 28] No space left on device"])],
            None,
        ),
        Case("another error", [*started(), *ended(1, words=[*TRACEBACK, "OSError: [Errno 2] No such file"])], None),
    ],
)
