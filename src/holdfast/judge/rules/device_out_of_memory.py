"""The device's memory ran out, and torch raised.

**What it means.** An allocation on the GPU (or of a tensor on the CPU) failed with an exception. Nothing is corrupt; the step
did not fit.

**Why it happens.** Batch or image too large, a graph that is kept alive (`total += loss` without `.item()`), fragmentation,
another program on the same device, on MPS the watermark limit.

**What to do.** Half the micro-batch with twice the accumulation keeps the effective batch. `PYTORCH_MPS_HIGH_WATERMARK_RATIO=0`
removes the limit and with it the protection: the system then swaps or kills.

Sources: pytorch#130112.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.judge.death import death, said, where
from holdfast.judge.history import TRACEBACK, ended, losses, started
from holdfast.judge.rule import Case, Rule
from holdfast.words import events
from holdfast.words.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.judge.picture import Picture

_WORDS = (
    r"(CUDA|HIP|XPU|MPS backend) out of memory",
    r"OutOfMemoryError",
    r"DefaultCPUAllocator: (can't|not enough) ",
    r"CUDA error: out of memory",
)


def judge(picture: Picture) -> Finding | None:
    gone = death(picture)
    words = said(gone, *_WORDS) if gone is not None else None
    if gone is None or words is None:
        return None
    return Finding(
        rule="device-out-of-memory",
        severity="fatal",
        message=f"An allocation failed {where(picture.attempt)}: the step did not fit into the device's memory.",
        evidence=[words],
        remedies=[
            "half the batch with twice the gradient accumulation: the effective batch stays the same",
            "a smaller image size",
            "look for a graph that is kept alive: add losses up as loss.item()",
        ],
    )


RULE = Rule(
    id="device-out-of-memory",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=70,
    cases=[
        Case(
            "CUDA",
            [
                *started(),
                *losses(1.0),
                *ended(1, words=[*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"]),
            ],
            "fatal",
        ),
        Case(
            "MPS",
            [
                *started(),
                *ended(
                    1,
                    words=[
                        *TRACEBACK,
                        "RuntimeError: MPS backend out of memory (MPS allocated: 9.0 GB, max allowed: 9.07 GB)",
                    ],
                ),
            ],
            "fatal",
        ),
        Case(
            "it was mentioned, but the run went well",
            [*started(), *ended(0, words=["CUDA out of memory, retrying"])],
            None,
        ),
        Case("another exception", [*started(), *ended(1, words=[*TRACEBACK, "ValueError: no"])], None),
    ],
)
