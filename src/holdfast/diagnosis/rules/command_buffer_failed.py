"""Apple's GPU gave up work in the middle, and the training went on without its results.

**What it means.** `Error: command buffer exited with error status. The Metal Performance Shaders operations encoded on it may not
have completed.` torch does not raise: the tensors hold whatever was in memory, and the model goes on learning from that.
Trainings that ran on to the end gave bogus models; others met NaN or nonsense counts soon after.

**Why it happens.** The system took the GPU away (a time limit, a display that needs it), its memory ran out
(`kIOGPUCommandBufferCallbackErrorOutOfMemory`), or a kernel failed.

**What to do.** Stop at once, and go on from a checkpoint from before the message: Holdfast does both. If it comes again: a
smaller batch, no other work on the GPU, a newer torch and macOS.

**When it stays silent.** On machines that are no Macs. Metal writes to stderr: the same words on stdout are a warning, and
nothing is stopped, as a training may quote them.

Sources: pytorch#123171, pytorch#125954, pytorch#193571, apple/tensorflow_macos#202, OpenSplat#198.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, match_output
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import newest_torch, on_mps
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains
from holdfast.testing.signatures import device, on_mac, printed, unknown_machine

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "command-buffer-failed"
WORDS = (
    r"Error: command buffer exited with error status\.",
    r"Execution of the command buffer was aborted due to an error during execution\.",
    r"\(0000000[0-9a-f]:kIOGPUCommandBufferCallbackError\w+\)",
)
_NO_MEMORY = re.compile(r"ErrorOutOfMemory|Insufficient Memory")


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    line = attempt.printed.get(ID)
    gone = find_failure(state)
    text = line.text if line is not None else match_output(gone, *WORDS) if gone is not None else None
    if text is None or on_mps(state) is False:
        return None
    certain = line is None or line.stream != "stdout"
    no_memory = _NO_MEMORY.search(text) is not None
    count = line.count if line is not None else 1
    return Finding(
        rule=ID,
        severity="fatal" if certain else "warn",
        confidence="proven" if certain else "possible",
        corrupt_from=attempt.last_step,
        message=f"Apple's GPU gave up work {describe_position(attempt)}"
        + (" for lack of memory" if no_memory else "")
        + ": what the model learned since then rests on numbers that were never computed.",
        evidence=[text, f"said {count} time{'s' if count != 1 else ''}"],
        remedies=[
            "go on from a checkpoint from before it",
            "a smaller batch or image: work that takes the GPU too long or too much memory is cut off",
            "no other heavy work on the GPU meanwhile",
            f"{newest_torch(state)}, and the newest macOS",
        ],
    )


_SAID = "Error: command buffer exited with error status."
_BEHIND_A_BAR = " 40%|████▊      | 12/30 [36:03<53:52, 179.58s/it]Error: command buffer exited with error status."
_MEMORY = (
    "Execution of the command buffer was aborted due to an error during execution. Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
)

RULE = Rule(
    id=ID,
    kind="resources",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    page=__doc__ or "",
    words=WORDS,
    cause=62,
    cases=[
        Case("while it trains", [*on_mac("2.3.0"), *losses(1.0, 0.9), *printed(ID, _SAID)], "fatal"),
        Case("behind a progress bar", [*on_mac(), *losses(1.0), *printed(ID, _BEHIND_A_BAR)], "fatal"),
        Case("for lack of memory", [*on_mac(), *losses(1.0), *printed(ID, _MEMORY)], "fatal"),
        Case("in a log of unknown origin", [*unknown_machine(), *printed(ID, _SAID, stream="log")], "fatal"),
        Case(
            "it died of the nonsense soon after",
            [
                *on_mac(),
                *losses(1.0),
                *ended(1, words=[_SAID, "IndexError: index -9223372036854775808 is out of bounds"]),
            ],
            "fatal",
        ),
        Case("quoted on stdout", [*on_mac(), *losses(1.0), *printed(ID, f"doc: {_SAID}", stream="stdout")], "warn"),
        Case("quoted on a machine that is no Mac", [*started(), *trains(), *printed(ID, _SAID)], None),
        Case("quoted by a training on CUDA", [*unknown_machine(), *device("cuda:0"), *printed(ID, _SAID)], None),
        Case("another rule's line", [*on_mac(), *printed("nms-cut-short", "NMS time limit 2.100s exceeded")], None),
    ],
)
