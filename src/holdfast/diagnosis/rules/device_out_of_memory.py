"""The device's memory ran out, and torch raised.

**What it means.** An allocation on the GPU (or of a tensor on the CPU) failed with an exception. Nothing is corrupt; the step
did not fit.

**Why it happens.** Batch or image too large, a graph that is kept alive (`total += loss` without `.item()`), fragmentation,
another program on the same device, on MPS the watermark limit. The numbers in the message tell these apart, and the finding
says which they point to: on MPS "other allocations" are what the driver keeps beside the tensors (compiled graphs, one set
for each new shape); on CUDA "reserved but unallocated" is what fragmentation holds back.

**What to do.** Half the micro-batch with twice the accumulation keeps the effective batch. Where the driver holds the most:
inputs of one shape, and a fresh process now and then. `PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0`, which torch's own message
proposes, comes last: it removes the limit and with it the protection, and the system then swaps or kills.

**Where reports conclude wrongly.** "No such error, so it was not memory": the default limit of MPS is 1.7 times the recommended
working set, above what many Macs have; those swap and are killed instead of raising.

**A note** is made where Ultralytics met it in its first epoch and lowered the batch by itself.

Sources: pytorch#130112, pytorch#105839, pytorch#152351; `ultralytics/engine/trainer.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import TRACEBACK, ended, losses, started, trains
from holdfast.testing.signatures import on_mac, printed, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "device-out-of-memory"
_WORDS = (
    r"(CUDA|HIP|XPU|MPS backend) out of memory",
    r"OutOfMemoryError",
    r"DefaultCPUAllocator: (can't|not enough) ",
    r"CUDA error: out of memory",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"kIOGPUCommandBufferCallbackErrorOutOfMemory",
)
LOWERED = r"out of memory with batch=\d+\. Reducing to batch=\d+ and retrying"
_SIZE = r"([\d.]+ [KMGT]?i?B)"
_MPS = re.compile(rf"MPS allocated: {_SIZE}, other allocations: {_SIZE}, max allowed: {_SIZE}")
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_RESERVED = re.compile(rf"{_SIZE} is allocated by PyTorch, and {_SIZE} is reserved by PyTorch but unallocated")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_MUCH_RESERVED = 0.2

_DRIVER = (
    "the driver holds more than the tensors do: give all inputs one shape, and start a fresh process every few epochs"
)
_FRAGMENTED = "much is reserved and unused: export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_FITS = (
    "half the batch with twice the gradient accumulation: the effective batch stays the same",
    "a smaller image size",
    "look for a graph that is kept alive: add losses up as loss.item()",
)
_UNLIMITED = (
    "last, PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0: without the limit the system swaps or kills in place of this message"
)


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *_WORDS) if gone is not None else None
    if words is None:
        line = state.attempt.printed.get(ID)
        return _lowered(line.text) if line is not None else None
    numbers, pointing = _read(words)
    return Finding(
        rule=ID,
        severity="fatal",
        message=f"An allocation failed {describe_position(state.attempt)}: the step did not fit into the device's memory{numbers}.",
        evidence=[words],
        remedies=[*pointing, *_FITS, *([_UNLIMITED] if "MPS backend" in words else [])],
    )


def _read(words: str) -> tuple[str, list[str]]:
    """The message's numbers for a sentence, and the remedies that they point to."""
    found = _ASKED.search(words)
    asked = f"{found[1]} more" if found else "more"
    if mps := _MPS.search(words):
        tensors, others, limit = mps.groups()
        told = f" (tensors {tensors}, driver {others}, limit {limit}; it asked for {asked})"
        return told, [_DRIVER] if _bytes(others) > _bytes(tensors) else []
    if held := _RESERVED.search(words):
        used, unused = held.groups()
        told = f" (tensors {used}, reserved and unused {unused}; it asked for {asked})"
        return told, [_FRAGMENTED] if _bytes(unused) > _MUCH_RESERVED * _bytes(used) else []
    return (f" (it asked for {asked})" if found else ""), []


def _bytes(size: str) -> float:
    number, unit = size.split(" ")
    return float(number) * _UNITS[unit.replace("i", "")]


def _lowered(text: str) -> Finding:
    return Finding(
        rule=ID,
        severity="note",
        message="The first epoch did not fit into the device's memory, and Ultralytics lowered the batch by itself.",
        evidence=[text],
        remedies=["ask for the smaller batch yourself, so that runs stay comparable"],
    )


_CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of "
    "which 1.20 GiB is free. Of the allocated memory 15.10 GiB is allocated by PyTorch, and 6.50 GiB is reserved by PyTorch "
    "but unallocated."
)
_MPS_SAID = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB)."
    " Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
    "memory allocations (may cause system failure)."
)

RULE = Rule(
    id=ID,
    kind="exit",
    on=(events.AttemptEnded, events.OutputMatched),
    judge=judge,
    page=__doc__ or "",
    words=(LOWERED,),
    cause=70,
    cases=[
        Case("CUDA", [*started(), *losses(1.0), *raises(_CUDA)], "fatal"),
        Case("MPS", [*on_mac(), *losses(1.0), *raises(_MPS_SAID)], "fatal"),
        Case(
            "MPS, as older versions write it",
            [
                *on_mac(),
                *raises("RuntimeError: MPS backend out of memory (MPS allocated: 9.0 GB, max allowed: 9.07 GB)"),
            ],
            "fatal",
        ),
        Case(
            "one rank of many, under torchrun",
            [
                *started(),
                *ended(
                    1,
                    words=[
                        *(f"[rank1]: {line}" for line in (*TRACEBACK, _CUDA)),
                        "Traceback (most recent call last):",
                        '  File "/venv/bin/torchrun", line 8, in <module>',
                        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
                    ],
                ),
            ],
            "fatal",
        ),
        Case(
            "Ultralytics lowered the batch",
            [
                *started(),
                *trains(),
                *printed(
                    ID,
                    "WARNING ⚠️ CUDA out of memory with batch=16. Reducing to batch=8 and retrying (1/3).",
                    stream="stdout",
                ),
            ],
            "note",
        ),
        Case(
            "it was mentioned, but the run went well",
            [*started(), *ended(0, words=["CUDA out of memory, retrying"])],
            None,
        ),
        Case(
            "it was caught and survived; the end came from elsewhere",
            [*started(), *ended(1, words=[*TRACEBACK, _CUDA, "skipped a batch", *TRACEBACK, "ValueError: no"])],
            None,
        ),
        Case("another exception", [*started(), *ended(1, words=[*TRACEBACK, "ValueError: no"])], None),
    ],
)
