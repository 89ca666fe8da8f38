"""The Apple GPU aborted work, and training continued without the results.

**What it means.** Metal printed `Error: command buffer exited with error status. The Metal Performance Shaders
operations encoded on it may not have completed.` PyTorch does not raise an exception: the tensors contain whatever was
in memory, and the model keeps learning from it. In reported cases, training runs that continued to
the end produced useless models. Others failed soon afterwards with NaN or invalid index counts.

**Why it happens.** macOS preempted the GPU work (because it exceeded a time limit, or because the display needed the
GPU), the GPU ran out of memory (`kIOGPUCommandBufferCallbackErrorOutOfMemory`), or a kernel failed.

**What to do.** Stop the run immediately and resume from a checkpoint that was saved before the message; Holdfast does
both. If it happens again, use a smaller batch, run nothing else on the GPU, and install a newer torch and macOS.

**When it is not reported.** It is not reported on machines that are not Macs, or if the run is known not to use the
Apple GPU.

**Severity.** The severity is `fatal`, and Holdfast stops the run. Metal writes to stderr; if the same text appears on
stdout, the severity is only `warn`, because a script may print it for other reasons.

Sources: pytorch#123171, pytorch#125954, pytorch#193571, apple/tensorflow_macos#202, OpenSplat#198.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, find_failure, match_output
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.diagnosis.versions import newest_torch, on_mps
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.signatures import device, on_mac, printed, unknown_machine

ID = "command-buffer-failed"
PATTERNS = (
    r"Error: command buffer exited with error status\.",
    r"Execution of the command buffer was aborted due to an error during execution\.",
    r"\(0000000[0-9a-f]:kIOGPUCommandBufferCallbackError\w+\)",
)
_OUT_OF_MEMORY_PATTERN = re.compile(r"ErrorOutOfMemory|Insufficient Memory")


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    line = attempt.printed.get(ID)
    failure = find_failure(state)
    text = line.text if line is not None else match_output(failure, *PATTERNS) if failure is not None else None
    if text is None or on_mps(state) is False:
        return None
    certain = line is None or line.stream != "stdout"
    out_of_memory = _OUT_OF_MEMORY_PATTERN.search(text) is not None
    count = line.count if line is not None else 1
    return Finding(
        severity="fatal" if certain else "warn",
        confidence="proven" if certain else "possible",
        corrupt_from=attempt.last_step,
        message=f"The Apple GPU aborted work {describe_position(attempt)}"
        + (" because it ran out of memory" if out_of_memory else "")
        + ": the model has been trained on invalid values since then.",
        evidence=[text, f"printed {count} time{'s' if count != 1 else ''}"],
        remedies=[
            "resume from a checkpoint saved before this message",
            "use a smaller batch or image size: work that takes too long or too much memory is aborted",
            "run no other heavy work on the GPU at the same time",
            f"{newest_torch(state)}; update macOS too",
        ],
    )


_ERROR = "Error: command buffer exited with error status."
_AFTER_PROGRESS_BAR = " 40%|████▊      | 12/30 [36:03<53:52, 179.58s/it]Error: command buffer exited with error status."
_OUT_OF_MEMORY = (
    "Execution of the command buffer was aborted due to an error during execution. Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
)

RULE = Rule(
    kind="resources",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    words=PATTERNS,
    cause=62,
    corrupts_state=True,
    suspects_device=True,
    remedies=("as-it-is", "micro-batch", "next-device"),
    cases=lambda: [
        Case("during training", "fatal", on_mac("2.3.0"), losses(1.0, 0.9), printed(ID, _ERROR)),
        Case(
            "after a progress bar, on the same line", "fatal", on_mac(), losses(1.0), printed(ID, _AFTER_PROGRESS_BAR)
        ),
        Case("out of memory", "fatal", on_mac(), losses(1.0), printed(ID, _OUT_OF_MEMORY)),
        Case("in a log of unknown origin", "fatal", unknown_machine(), printed(ID, _ERROR, stream="log")),
        Case(
            "failed soon afterwards because of invalid values",
            "fatal",
            on_mac(),
            losses(1.0),
            ended(1, words=[_ERROR, "IndexError: index -9223372036854775808 is out of bounds"]),
        ),
        Case("the same text on stdout", "warn", on_mac(), losses(1.0), printed(ID, f"doc: {_ERROR}", stream="stdout")),
        Case("the same text on a machine that is not a Mac", None, trains(), printed(ID, _ERROR)),
        Case("the same text in a run on CUDA", None, unknown_machine(), device("cuda:0"), printed(ID, _ERROR)),
        Case(
            "a line that belongs to another rule",
            None,
            on_mac(),
            printed("nms-cut-short", "NMS time limit 2.100s exceeded"),
        ),
    ],
)
