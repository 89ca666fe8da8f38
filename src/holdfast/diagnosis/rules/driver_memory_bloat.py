"""The device's driver uses many times the memory of the tensors, and this memory keeps growing.

**What it means.** Tensors take a few hundred MB, while the driver or the caching allocator uses several GB, and more
over time. On a Mac, the GPU shares main memory, so the machine starts swapping; in one reported case, a step took 16 s
instead of 0.5 s. The resident memory of the process does not show this.

**Why it happens.** MPS keeps a compiled graph for every input shape it has received, without an upper limit. Each new
shape adds a graph: the last batch of an epoch, multi-scale training, rectangular images, variable-length text. On CUDA,
the caching allocator fragments if sizes change all the time.

**What to do.** Try the following in this order:

1. Keep shapes fixed: drop the last batch (`drop_last=True`), and pad inputs to a few sizes.
2. Call `torch.mps.empty_cache()` after optimizer steps (in a plan: `steps = N` under `[clear_cache]`).
3. On MPS, set both `PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.0` and `PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8`.
4. Resume from the last checkpoint in a new process every few epochs.

**When it is reported.** It is reported if the driver uses more than 2 GiB and more than eight times the memory of the
tensors (their peak, if the device provides it), and one of these conditions is met:

- The memory of the driver is still growing. Growth is ignored until four epochs have finished, or for the first ten
  minutes if Holdfast cannot observe a `DataLoader`.
- On MPS, the driver uses at least half of the machine's memory, and swap usage has grown by at least 2 GiB.

**When it is not reported.** It is not reported for caches that have stopped growing, unless the machine swaps.

Sources: ultralytics#24065 (torch 2.9.1: 0.37 GB of tensors, 12 to 13 GB in the driver, 24 GB in swap),
ultralytics#22621, ultralytics#24222, pytorch#181213.
"""

from __future__ import annotations

import math

from holdfast.diagnosis.growth import growth
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.remedy_ids import LESS_MEMORY
from holdfast.diagnosis.rule import AttemptState, Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.schema.units import GIB, size
from holdfast.testing.resources import memory_history

LIMITS = {"least_gib": 2.0, "times": 8.0, "part_of_memory": 0.5, "swap_gib": 2.0, "epochs": 4, "minutes": 10.0}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    memory = attempt.memory
    device = memory.device
    if device is None or device.allocated is None or not memory.is_analysis_due:
        return None
    limits = state.get_limits("driver-memory-bloat", LIMITS)
    driver = device.driver if device.driver is not None else device.reserved
    tensors = max(device.allocated, device.peak or 0)
    if driver is None or driver < limits["least_gib"] * GIB or driver < limits["times"] * tensors:
        return None
    sign = _describe_growth(attempt, limits) or _describe_swap(state, driver, limits)
    if sign is None:
        return None
    ratio = f"{driver / tensors:.0f} times" if tensors else "far more than"
    return Finding(
        severity="warn",
        message=f"The driver of {device.device} uses {size(driver)}, {ratio} the memory of the tensors ({size(tensors)}): {sign}.",
        evidence=[
            f"step {device.step}: driver {size(driver)}, tensors {size(tensors)}",
            f"{size(memory.samples[-1].available)} of system memory available, {size(memory.samples[-1].swap)} in swap",
            f"torch {attempt.torch or '(unknown version)'}" + (f", {attempt.framework}" if attempt.framework else ""),
        ],
        remedies=_select_remedies(state, memory_is_shared=memory.is_shared),
    )


def _describe_growth(attempt: AttemptState, limits: Limits) -> str | None:
    """Ignore the first epochs: every shape is new then, and a growing cache is normal."""
    start = attempt.first_step_at or 0.0
    if attempt.pace.epochs_done < limits["epochs"] and (
        attempt.batches.hashed or attempt.memory.points[-1].at - start < limits["minutes"] * 60.0
    ):
        return None
    points = [(point.at, point.driver) for point in attempt.memory.points if point.at >= start and point.driver]
    trend = growth(points)
    if trend is None or trend.grown < 0.25 * limits["least_gib"] * GIB:
        return None
    return f"it grows by {size(trend.rate * 3600.0)} per hour"


def _describe_swap(state: RunState, driver: int, limits: Limits) -> str | None:
    memory = state.attempt.memory
    total = state.started.memory_total if state.started is not None else None
    swapped = memory.samples[-1].swap - memory.points[0].swap
    if (
        not memory.is_shared
        or not total
        or driver < limits["part_of_memory"] * total
        or swapped < limits["swap_gib"] * GIB
    ):
        return None
    return f"the machine has moved {size(swapped)} to swap since the start"


def _select_remedies(state: RunState, *, memory_is_shared: bool) -> list[str]:
    shapes = f"keep the shapes of batches fixed: drop_last=True, pad to a few sizes{hint(state, 'fixed-shapes')}"
    if not memory_is_shared:
        return [shapes, "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before torch is imported"]
    return [
        shapes,
        "use a smaller batch or image size",
        f"disable dataset caching and plots{hint(state, 'no-cache', 'no-plots')}, and use a smaller validation batch",
        "call torch.mps.empty_cache() after optimizer steps",
        "set both watermarks before torch is imported: PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.0 PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8",
        "resume from the last checkpoint in a new process every few epochs",
    ]


RULE = Rule(
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    predicts_kill=True,
    restarts_while_running=True,
    charts=("memory",),
    remedies=("fixed-shapes", "clear-cache", "cap-watermarks", "fresh-process", *LESS_MEMORY),
    cases=lambda: [
        Case(
            "the driver's memory keeps growing",
            "warn",
            memory_history(rss=1.5, allocated=0.37, driver=lambda part: 1.0 + 11.0 * part),
        ),
        Case(
            "the driver's memory is large and the machine swaps",
            "warn",
            memory_history(rss=1.5, allocated=0.37, driver=12.5, swap=lambda part: 24.0 * min(1.0, 4 * part)),
        ),
        Case(
            "a caching allocator on a device with its own memory",
            "warn",
            memory_history(device="cuda:0", allocated=0.3, driver=lambda part: 1.0 + 9.0 * part),
        ),
        Case(
            "growth that levels off",
            None,
            memory_history(allocated=0.3, driver=lambda part: 5.0 * (1 - math.exp(-8 * part))),
        ),
        Case(
            "large, but so are the tensors", None, memory_history(allocated=3.0, driver=lambda part: 4.0 + 6.0 * part)
        ),
        Case("small", None, memory_history(allocated=0.05, driver=lambda part: 0.2 + part)),
        Case("no device", None, memory_history()),
    ],
)
