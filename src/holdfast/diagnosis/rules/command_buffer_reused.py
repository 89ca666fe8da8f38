"""Two threads used the Apple GPU at the same time, and Metal aborted the process.

**What it means.** Metal reported ``failed assertion `commit an already committed command buffer'`` and aborted the
process (SIGABRT, exit status 134). Work was added to a command buffer that had already been committed.

**Why it happens.** PyTorch keeps one command buffer per stream. In torch 2.13 and earlier, some code paths modify it
without synchronization. Typical triggers are a preview, logger or evaluation in another thread, pinned memory, and
operators that fall back to the CPU (`PYTORCH_ENABLE_MPS_FALLBACK=1`). The timing is random.

**What to do.** Use the GPU from one thread only: do not run an evaluation or preview in the background, set
`num_workers=0`, and do not pin memory. Do not use the CPU fallback. Install torch 2.14 or newer.

Sources: pytorch#108996, pytorch#197805, pytorch#197836, AUTOMATIC1111/stable-diffusion-webui#11749.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import (
    describe_position,
    exception_line,
    find_failure,
    killed_by,
    match_output,
    quote_evidence,
)
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.diagnosis.versions import newer_torch, newest_torch
from holdfast.schema import events
from holdfast.testing.histories import TRACEBACK, ended, losses
from holdfast.testing.signatures import on_mac

_PATTERNS = (
    r"commit an already committed command buffer",
    r"_status < MTLCommandBufferStatusCommitted",
    r"A command encoder is already encoding to this command buffer",
)
FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    line = match_output(failure, *_PATTERNS) if failure is not None else None
    if failure is None or line is None or (killed_by(failure) != "SIGABRT" and exception_line(failure) is not None):
        return None
    environment = state.started.environment if state.started is not None else {}
    fallback = [f"{FALLBACK}={environment[FALLBACK]}"] if environment.get(FALLBACK, "0") not in ("0", "") else []
    return Finding(
        severity="fatal",
        message=f"Metal aborted the process {describe_position(state.attempt)}: two threads used the Apple GPU at the same time.",
        evidence=[line, *fallback, *quote_evidence(failure, 2)],
        remedies=[
            *([f"unset {FALLBACK}: using both devices makes this more likely"] if fallback else []),
            "use the GPU from one thread only: no evaluation, preview or logging of device tensors in other threads",
            newer_torch(state, (2, 14)) or newest_torch(state),
            *([] if fallback else [f"if {FALLBACK} is set, unset it"]),
        ],
    )


_COMMITTED = "-[IOGPUMetalCommandBuffer validate]:213: failed assertion `commit an already committed command buffer'"
_STATUS = (
    "failed assertion _status < MTLCommandBufferStatusCommitted at line 322 in "
    "-[IOGPUMetalCommandBuffer setCurrentCommandEncoder:]"
)

RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=65,
    suspects_device=True,
    remedies=("no-mps-fallback", "no-workers", "as-it-is", "next-device"),
    cases=lambda: [
        Case("abort", "fatal", on_mac("2.13.0"), losses(1.0), ended(signal="SIGABRT", words=[_COMMITTED])),
        Case(
            "status 134 from a shell, with the CPU fallback on",
            "fatal",
            on_mac(environment={FALLBACK: "1"}),
            ended(134, words=[_STATUS, "Abort trap: 6"]),
        ),
        Case(
            "printed; the script raised a different exception",
            None,
            on_mac(),
            ended(1, words=[f"known issue: {_COMMITTED}", *TRACEBACK, "ValueError: no"]),
        ),
        Case("a different abort", None, on_mac(), ended(signal="SIGABRT", words=["assertion failed"])),
        Case("printed; the run succeeded", None, on_mac(), ended(0, words=[_COMMITTED])),
    ],
)
