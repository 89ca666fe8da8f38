"""The device ran out of memory, and PyTorch raised an exception.

**What it means.** An allocation on the GPU (or of a CPU tensor) failed with an exception. Nothing is corrupt; the step
did not fit in memory.

**Why it happens.** Common causes are a batch or image that is too large, an autograd graph that is kept alive (`total
+= loss` without `.item()`), fragmentation, another program on the same device, or the watermark limit on MPS. The
finding uses the numbers in the message to name the likely cause. On MPS, "other allocations" is the memory that the
driver uses in addition to the tensors (compiled graphs, one set for each new shape). On CUDA, "reserved but
unallocated" is memory that cannot be used because of fragmentation.

**What to do.** Halve the micro-batch size and double gradient accumulation; the effective batch size stays the same. If
the driver uses most of the memory, use inputs of a fixed shape, and restart from a checkpoint in a new process every
few epochs. PyTorch's error message suggests `PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0`. Use it only as a last resort: it
removes the limit and its protection, and the system then swaps or kills the process.

**Common misdiagnoses.** The absence of this error does not rule out a lack of memory. The default limit on MPS is 1.7
times the recommended working set size, which exceeds the physical memory of many Macs; the system then swaps and kills
the process instead.

**Severity.** The severity is `fatal`. If the framework ran out of memory in its first epoch and reduced the batch size by
itself, this is reported as a `note`.

Sources: pytorch#130112, pytorch#105839, pytorch#152351; `ultralytics/engine/trainer.py`.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.remedy_ids import DIED_IN_VALIDATION, LESS_AT_PEAK, LESS_MEMORY
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.frameworks import all_frameworks
from holdfast.schema import events
from holdfast.schema.devices import DEVICES
from holdfast.testing.histories import TRACEBACK, ended, losses, trains
from holdfast.testing.signatures import on_mac, printed, raises

ID = "device-out-of-memory"
_PATTERNS = (
    rf"({'|'.join(words for kind in DEVICES.values() for words in kind.out_of_memory)}) out of memory",
    r"OutOfMemoryError",
    r"DefaultCPUAllocator: (can't|not enough) ",
    r"CUDA error: out of memory",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"kIOGPUCommandBufferCallbackErrorOutOfMemory",
)
REDUCED = tuple(pattern for framework in all_frameworks() if (pattern := framework.reduced_batch_pattern))
_SIZE = r"([\d.]+ [KMGT]?i?B)"
_MPS = re.compile(rf"MPS allocated: {_SIZE}, other allocations: {_SIZE}, max allowed: {_SIZE}")
_REQUESTED = re.compile(rf"Tried to allocate {_SIZE}")
_RESERVED = re.compile(rf"{_SIZE} is allocated by PyTorch, and {_SIZE} is reserved by PyTorch but unallocated")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_MUCH_UNUSED = 0.2

_DRIVER = "the driver uses more memory than the tensors: give all inputs the same shape, and restart in a new process every few epochs"
_FRAGMENTED = "a lot of memory is reserved but unused: export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_USE_LESS = (
    "halve the batch size and double gradient accumulation: the effective batch size stays the same",
    "use a smaller image size",
    "look for an autograd graph that is kept alive: sum losses with loss.item()",
)
_REMOVE_LIMIT = "as a last resort, PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0: without the limit the system swaps or kills the process instead"


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    line = match_exception(failure, *_PATTERNS) if failure is not None else None
    if line is None:
        match = state.attempt.printed.get(ID)
        return _report_smaller_batch(match.text) if match is not None else None
    numbers, specific = _parse_error(line)
    return Finding(
        severity="fatal",
        message=f"An allocation failed {describe_position(state.attempt)}: the step did not fit in the device's memory{numbers}.",
        evidence=[line],
        remedies=[*specific, *_USE_LESS, *([_REMOVE_LIMIT] if "MPS backend" in line else [])],
        data={"cause": "fragmented"} if _FRAGMENTED in specific else {},
    )


def _parse_error(line: str) -> tuple[str, list[str]]:
    """Return the numbers of the error message, for a sentence, and the remedies that they point to."""
    request = _REQUESTED.search(line)
    requested = f"{request[1]} more" if request else "more"
    if mps := _MPS.search(line):
        tensors, others, limit = mps.groups()
        numbers = f" (tensors {tensors}, driver {others}, limit {limit}; {requested} requested)"
        return numbers, [_DRIVER] if _parse_size(others) > _parse_size(tensors) else []
    if reserved := _RESERVED.search(line):
        used, unused = reserved.groups()
        numbers = f" (tensors {used}, reserved but unused {unused}; {requested} requested)"
        return numbers, [_FRAGMENTED] if _parse_size(unused) > _MUCH_UNUSED * _parse_size(used) else []
    return (f" ({requested} requested)" if request else ""), []


def _parse_size(size: str) -> float:
    number, unit = size.split(" ")
    return float(number) * _UNITS[unit.replace("i", "")]


def _report_smaller_batch(text: str) -> Finding:
    return Finding(
        severity="note",
        message="The first epoch did not fit in the device's memory, and the framework reduced the batch size by itself.",
        evidence=[text],
        remedies=["set the smaller batch size explicitly, so that runs stay comparable"],
    )


_CUDA_ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of "
    "which 1.20 GiB is free. Of the allocated memory 15.10 GiB is allocated by PyTorch, and 6.50 GiB is reserved by PyTorch "
    "but unallocated."
)
_MPS_ERROR = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB)."
    " Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
    "memory allocations (may cause system failure)."
)

RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded, events.OutputMatched),
    judge=judge,
    words=REDUCED,
    cause=70,
    fails_again=True,
    charts=("memory",),
    remedies=(
        *DIED_IN_VALIDATION,
        "expandable-segments",
        "fresh-process",
        "nothing-extra",
        *LESS_AT_PEAK,
        *LESS_MEMORY,
    ),
    cases=lambda: [
        Case("CUDA", "fatal", losses(1.0), raises(_CUDA_ERROR)),
        Case("MPS", "fatal", on_mac(), losses(1.0), raises(_MPS_ERROR)),
        Case(
            "MPS, as older versions write it",
            "fatal",
            on_mac(),
            raises("RuntimeError: MPS backend out of memory (MPS allocated: 9.0 GB, max allowed: 9.07 GB)"),
        ),
        Case(
            "one of several ranks, under torchrun",
            "fatal",
            ended(
                1,
                words=[
                    *(f"[rank1]: {line}" for line in (*TRACEBACK, _CUDA_ERROR)),
                    "Traceback (most recent call last):",
                    '  File "/venv/bin/torchrun", line 8, in <module>',
                    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
                ],
            ),
        ),
        Case(
            "the framework reduced the batch",
            "note",
            trains(),
            printed(
                ID,
                "WARNING ⚠️ CUDA out of memory with batch=16. Reducing to batch=8 and retrying (1/3).",
                stream="stdout",
            ),
        ),
        Case("printed; the run succeeded", None, ended(0, words=["CUDA out of memory, retrying"])),
        Case(
            "caught; the run failed for another reason",
            None,
            ended(1, words=[*TRACEBACK, _CUDA_ERROR, "skipped a batch", *TRACEBACK, "ValueError: no"]),
        ),
        Case("a different exception", None, ended(1, words=[*TRACEBACK, "ValueError: no"])),
    ],
)
