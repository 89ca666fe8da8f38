"""Loader workers were made in a way that Apple's GPU does not survive.

**What it means.** A worker process died at once (`objc[..]: +[..] may have been in progress in another thread when fork() was
called`), or a tensor that lives on the GPU was to be handed to a worker (`_share_filename_: only available on CPU`). The
training sees only that a worker exited.

**Why it happens.** Metal was in use before the workers were forked: a forked process cannot use it. Or the dataset, its
transforms or the collate function hold tensors on `mps`, and those cannot be shared between processes.

**What to do.** `num_workers=0` (Ultralytics does this by itself on MPS), or workers by spawn
(`multiprocessing_context="spawn"`) with everything in the dataset on the CPU. `OBJC_DISABLE_INITIALIZE_FORK_SAFETY=YES` only
takes the check away: workers then hang or crash at random.

Sources: pytorch#178037, pytorch#87688.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, killed_by, match_exception, match_output
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended
from holdfast.testing.signatures import on_mac, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_FORKED = (
    r"^objc\[\d+\]: .* when fork\(\) was called",
    r"objc_initializeAfterForkError",
    r"Cannot re-initialize MPS in forked subprocess",
)
_SHARED = r"_share_filename_: only available on CPU"
_WORKER = r"DataLoader worker \(pid"


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    if gone is None:
        return None
    shared = match_exception(gone, _SHARED)
    forked = None if shared else match_output(gone, *_FORKED)
    if shared is None and (
        forked is None or not (killed_by(gone) == "SIGABRT" or match_exception(gone, _WORKER, *_FORKED))
    ):
        return None
    what = (
        "a tensor that lives on Apple's GPU was to be handed to a loader worker, which cannot be"
        if shared
        else "a process was forked after Apple's GPU was in use, and died of that"
    )
    worker = match_exception(gone, _WORKER)
    return Finding(
        rule="fork-after-metal",
        severity="fatal",
        message=f"It ended {describe_position(state.attempt)}, because {what}.",
        evidence=[shared or forked or "", *([worker] if worker else [])],
        remedies=[
            "no loader workers: num_workers=0 (Ultralytics: workers=0)",
            'workers by spawn: DataLoader(..., multiprocessing_context="spawn")',
            'keep what the dataset holds on the CPU; move a batch to "mps" in the training loop',
        ],
    )


_OBJC = (
    "objc[3067]: +[__NSCFConstantString initialize] may have been in progress in another thread when fork() was called. We "
    "cannot safely call it or ignore it in the fork() child process. Crashing instead. Set a breakpoint on "
    "objc_initializeAfterForkError to debug."
)

RULE = Rule(
    id="fork-after-metal",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=64,
    cases=[
        Case(
            "a worker crashed",
            [
                *on_mac(),
                *ended(
                    1,
                    last_step=0,
                    words=[
                        _OBJC,
                        "Traceback (most recent call last):",
                        '  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1251, in _try_get',
                        "RuntimeError: DataLoader worker (pid(s) 3067) exited unexpectedly",
                    ],
                ),
            ],
            "fatal",
        ),
        Case("the forked process was the training itself", [*on_mac(), *ended(134, words=[_OBJC])], "fatal"),
        Case(
            "a dataset with tensors on the GPU",
            [*on_mac(), *raises("RuntimeError: _share_filename_: only available on CPU", last_step=0)],
            "fatal",
        ),
        Case(
            "a helper process printed it; the training died of something else",
            [
                *on_mac(),
                *ended(1, words=[_OBJC, "Traceback (most recent call last):", "ValueError: bad shape"]),
            ],
            None,
        ),
        Case("it was printed, and the run went well", [*on_mac(), *ended(0, words=[_OBJC])], None),
    ],
)
