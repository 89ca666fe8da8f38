"""DataLoader workers were started in a way that the Apple GPU does not support.

**What it means.** A worker process crashed immediately (`objc[..]: +[..] may have been in progress in another thread
when fork() was called`), or a tensor on the GPU was passed to a worker (`_share_filename_: only available on CPU`). The
error in the main process only says that a worker exited.

**Why it happens.** Metal was in use before the workers were forked, and a forked process cannot use it; or the dataset,
its transforms or the collate function contain tensors on `mps`, which cannot be shared between processes.

**What to do.** Use `num_workers=0` (Ultralytics does this automatically on MPS), or start workers with spawn
(`multiprocessing_context="spawn"`) and keep everything in the dataset on the CPU. Do not set
`OBJC_DISABLE_INITIALIZE_FORK_SAFETY=YES`: it only removes the check, and workers then hang or crash at random.

Sources: pytorch#178037, pytorch#87688.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, match_exception, match_output
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended
from holdfast.testing.signatures import on_mac, raises

_FORKED = (
    r"^objc\[\d+\]: .* when fork\(\) was called",
    r"objc_initializeAfterForkError",
    r"Cannot re-initialize MPS in forked subprocess",
)
_SHARED = r"_share_filename_: only available on CPU"
_WORKER = r"DataLoader worker \(pid"


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    if failure is None:
        return None
    shared = match_exception(failure, _SHARED)
    forked = None if shared else match_output(failure, *_FORKED)
    if shared is None and (
        forked is None or not (killed_by(failure) == "SIGABRT" or match_exception(failure, _WORKER, *_FORKED))
    ):
        return None
    what = (
        "a tensor on the Apple GPU was passed to a DataLoader worker, and such tensors cannot be shared"
        if shared
        else "a process was forked after the Apple GPU had been used, and crashed"
    )
    worker = match_exception(failure, _WORKER)
    return Finding(
        severity="fatal",
        message=f"Training failed {describe_position(state.attempt)}: {what}.",
        evidence=[shared or forked or "", *([worker] if worker else [])],
        remedies=[
            f"use no DataLoader workers: num_workers=0{hint(state, 'no-workers')}",
            'start workers with spawn: DataLoader(..., multiprocessing_context="spawn")',
            'keep everything in the dataset on the CPU; move each batch to "mps" in the training loop',
        ],
    )


_OBJC = (
    "objc[3067]: +[__NSCFConstantString initialize] may have been in progress in another thread when fork() was called. We "
    "cannot safely call it or ignore it in the fork() child process. Crashing instead. Set a breakpoint on "
    "objc_initializeAfterForkError to debug."
)

RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    cause=64,
    fails_again=True,
    remedies=("no-workers", "next-device"),
    cases=lambda: [
        Case(
            "a worker crashed",
            "fatal",
            on_mac(),
            ended(
                1,
                last_step=0,
                words=[
                    _OBJC,
                    "Traceback (most recent call last):",
                    '  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1251, in _try_get',
                    "RuntimeError: DataLoader worker (pid(s) 3067) exited unexpectedly",
                ],
            ),
        ),
        Case("the forked process was the training process itself", "fatal", on_mac(), ended(134, words=[_OBJC])),
        Case(
            "a dataset with tensors on the GPU",
            "fatal",
            on_mac(),
            raises("RuntimeError: _share_filename_: only available on CPU", last_step=0),
        ),
        Case(
            "printed by a helper process; the run failed for another reason",
            None,
            on_mac(),
            ended(1, words=[_OBJC, "Traceback (most recent call last):", "ValueError: bad shape"]),
        ),
        Case("printed; the run succeeded", None, on_mac(), ended(0, words=[_OBJC])),
    ],
)
