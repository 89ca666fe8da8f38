"""Two threads used Apple's GPU at once, and Metal aborted the process.

**What it means.** ``failed assertion `commit an already committed command buffer'``, then SIGABRT (exit status 134). Work was put
into a command buffer that had been sent already.

**Why it happens.** torch keeps one command buffer a stream, and up to 2.13 several places change it without waiting for other
threads: a preview, a logger or an evaluation in a thread of its own, pinning, or operators that fall back to the CPU
(`PYTORCH_ENABLE_MPS_FALLBACK=1`) in between. When it comes is chance.

**What to do.** Use the GPU from one thread only: no background evaluation or preview, `num_workers=0`, no pinned memory. Do
without the CPU fallback. Install torch 2.14 or newer.

Sources: pytorch#108996, pytorch#197805, pytorch#197836, AUTOMATIC1111/stable-diffusion-webui#11749.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import (
    describe_position,
    exception_line,
    find_failure,
    killed_by,
    match_output,
    quote_evidence,
)
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import newer_torch, newest_torch
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import TRACEBACK, ended, losses
from holdfast.testing.signatures import on_mac

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = (
    r"commit an already committed command buffer",
    r"_status < MTLCommandBufferStatusCommitted",
    r"A command encoder is already encoding to this command buffer",
)
FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_output(gone, *_WORDS) if gone is not None else None
    if gone is None or words is None or (killed_by(gone) != "SIGABRT" and exception_line(gone) is not None):
        return None
    environment = state.started.environment if state.started is not None else {}
    fallback = [f"{FALLBACK}={environment[FALLBACK]}"] if environment.get(FALLBACK, "0") not in ("0", "") else []
    return Finding(
        rule="command-buffer-reused",
        severity="fatal",
        message=f"Metal aborted the process {describe_position(state.attempt)}: two threads used Apple's GPU at the same time.",
        evidence=[words, *fallback, *quote_evidence(gone, 2)],
        remedies=[
            *([f"unset {FALLBACK}: mixing both devices makes this likelier"] if fallback else []),
            "use the GPU from one thread only: no evaluation, preview or logging of device tensors in another one",
            newer_torch(state, (2, 14)) or newest_torch(state),
            *([] if fallback else [f"if {FALLBACK} is set, unset it"]),
        ],
    )


_SAID = "-[IOGPUMetalCommandBuffer validate]:213: failed assertion `commit an already committed command buffer'"
_STATUS = (
    "failed assertion _status < MTLCommandBufferStatusCommitted at line 322 in "
    "-[IOGPUMetalCommandBuffer setCurrentCommandEncoder:]"
)

RULE = Rule(
    id="command-buffer-reused",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=65,
    cases=[
        Case("abort", [*on_mac("2.13.0"), *losses(1.0), *ended(signal="SIGABRT", words=[_SAID])], "fatal"),
        Case(
            "134 through a shell, with the fallback on",
            [*on_mac(environment={FALLBACK: "1"}), *ended(134, words=[_STATUS, "Abort trap: 6"])],
            "fatal",
        ),
        Case(
            "it was quoted, and the training raised something else",
            [*on_mac(), *ended(1, words=[f"known issue: {_SAID}", *TRACEBACK, "ValueError: no"])],
            None,
        ),
        Case("another abort", [*on_mac(), *ended(signal="SIGABRT", words=["assertion failed"])], None),
        Case("it was quoted, and the run went well", [*on_mac(), *ended(0, words=[_SAID])], None),
    ],
)
