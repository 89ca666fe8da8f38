"""The device's driver holds many times what the training's tensors need, and more and more of it.

**What it means.** Tensors take a few hundred MB, the driver or the caching allocator holds gigabytes, and it keeps growing. On
a Mac that is the machine's own memory: it swaps, and a step takes sixteen seconds instead of half of one. Resident memory
does not show it.

**Why it happens.** On MPS a compiled graph is kept for every shape of input it has seen, without a bound; batches of ever new
shapes (the last batch of an epoch, multi-scale training, rectangular images, text of any length) each add one. On CUDA the
caching allocator falls to pieces when sizes change all the time.

**What to do.** Keep shapes fixed: drop the last batch, pad to a few sizes. Then empty the cache after optimizer steps, cap both
watermarks, and as the last resort go on in a fresh process every few epochs.

**What it needs.** Readings of the device's memory by the probe, over some time. It speaks where the driver holds more than
2 GiB and more than eight times what tensors hold (their peak, where the device tells it), and either still grows or the
machine swaps because of it. Growth in the first four epochs (in the first ten minutes where no loader is seen) does not
count, and caches that have found their size are left alone.

Sources: ultralytics#24065 (torch 2.9.1: 0.37 GB of tensors, 12 to 13 GB in the driver, 24 GB in swap), ultralytics#22621,
ultralytics#24222, pytorch#181213.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.growth import growth
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.units import GIB, size
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.resources import life

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.run_state import AttemptState, RunState

LIMITS = {"least_gib": 2.0, "times": 8.0, "part_of_memory": 0.5, "swap_gib": 2.0, "epochs": 4, "minutes": 10.0}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    memory = attempt.memory
    device = memory.device
    if device is None or device.allocated is None or not memory.is_analysis_due:
        return None
    limits = state.tuned("driver-memory-bloat", LIMITS)
    driver = device.driver if device.driver is not None else device.reserved
    tensors = max(device.allocated, device.peak or 0)
    if driver is None or driver < limits["least_gib"] * GIB or driver < limits["times"] * tensors:
        return None
    sign = _grows(attempt, limits) or _swaps(state, driver, limits)
    if sign is None:
        return None
    ratio = f"{driver / tensors:.0f} times" if tensors else "far more than"
    return Finding(
        rule="driver-memory-bloat",
        severity="warn",
        message=f"The driver of {device.device} holds {size(driver)}, {ratio} what is in tensors ({size(tensors)}): {sign}.",
        evidence=[
            f"step {device.step}: driver {size(driver)}, tensors {size(tensors)}",
            f"{size(memory.samples[-1].available)} of the machine's memory left, {size(memory.samples[-1].swap)} in swap",
            f"torch {attempt.torch or 'of an unknown version'}" + (f", {attempt.adapter}" if attempt.adapter else ""),
        ],
        remedies=_remedies(memory_is_shared=memory.on_mps),
    )


def _grows(attempt: AttemptState, limits: Mapping[str, float]) -> str | None:
    """In the first epochs every shape is new, and a cache may well grow."""
    begin = attempt.first_step_at or 0.0
    if attempt.pace.epochs_done < limits["epochs"] and (
        attempt.batches.hashed or attempt.memory.points[-1].at - begin < limits["minutes"] * 60.0
    ):
        return None
    points = [(point.at, point.driver) for point in attempt.memory.points if point.at >= begin and point.driver]
    found = growth(points)
    if found is None or found.grown < 0.25 * limits["least_gib"] * GIB:
        return None
    return f"it grows by {size(found.rate * 3600.0)} an hour"


def _swaps(state: RunState, driver: int, limits: Mapping[str, float]) -> str | None:
    memory = state.attempt.memory
    total = state.started.memory_total if state.started is not None else None
    swapped = memory.samples[-1].swap - memory.points[0].swap
    if (
        not memory.on_mps
        or not total
        or driver < limits["part_of_memory"] * total
        or swapped < limits["swap_gib"] * GIB
    ):
        return None
    return f"the machine has moved {size(swapped)} to swap meanwhile"


def _remedies(*, memory_is_shared: bool) -> list[str]:
    shapes = (
        "keep the shapes of batches fixed: drop_last=True, pad to a few sizes (Ultralytics: rect=False, no multi_scale)"
    )
    if not memory_is_shared:
        return [shapes, "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before torch is imported"]
    return [
        shapes,
        "use a smaller batch or image size",
        "switch off dataset caching and plots (Ultralytics: cache=False plots=False), and make validation lighter",
        "call torch.mps.empty_cache() after optimizer steps",
        "cap both watermarks before torch is imported: PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.0 PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8",
        "go on in a fresh process from the last checkpoint every few epochs",
    ]


RULE = Rule(
    id="driver-memory-bloat",
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("it grows and grows", life(rss=1.5, allocated=0.37, driver=lambda part: 1.0 + 11.0 * part), "warn"),
        Case(
            "it is large and the machine swaps",
            life(rss=1.5, allocated=0.37, driver=12.5, swap=lambda part: 24.0 * min(1.0, 4 * part)),
            "warn",
        ),
        Case(
            "an allocator on a device with memory of its own",
            life(device="cuda:0", allocated=0.3, driver=lambda part: 1.0 + 9.0 * part),
            "warn",
        ),
        Case("it found its size", life(allocated=0.3, driver=lambda part: 5.0 * (1 - math.exp(-8 * part))), None),
        Case("large, but so are the tensors", life(allocated=3.0, driver=lambda part: 4.0 + 6.0 * part), None),
        Case("small", life(allocated=0.05, driver=lambda part: 0.2 + part), None),
        Case("no device", life(), None),
    ],
)
