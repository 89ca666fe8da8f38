"""Memory usage grows steadily and will exceed the available memory.

**What it means.** The run uses a little more memory with every step or epoch and releases none of it. The finding
estimates the step or epoch at which memory will run out. The system then swaps, and finally kills the process without a
message.

**Why it happens.** Possible causes are an autograd graph that is kept alive (`total += loss` instead of `loss.item()`),
a list that collects outputs, hooks that are registered repeatedly, a Dataset whose Python lists are gradually copied
into every `DataLoader` worker (copy-on-write), a device driver that caches one graph per input shape (MPS), or a leak
in a library.

**What to do.** Find the objects that are never released, for example with `tracemalloc` or, on CUDA,
`torch.cuda.memory._snapshot()`. Until they are found, save checkpoints often, and restart from the latest one before
memory runs out. If the run takes snapshots (see docs/guard.md and docs/ultralytics.md), Holdfast does this
automatically, unless the plan sets `planned_restarts = false`.

**When it is reported.** Holdfast measures memory usage after the first step and reports steady growth of at least 128
MiB. The memory limit of the run is the smallest of these amounts:

- the available memory plus the memory that the run already uses (on a Mac including the memory of the GPU driver, which
  is the same memory);
- the total memory of the machine or of its container;
- `memory` in the `[budget]` table of the plan;
- `budget_gib`, if you set it (`--rule memory-leak.budget_gib=N`).

If memory grows on a device with its own memory, the limit is the capacity that the device reports.

**Severity.** It is reported as `warn` if both of these conditions are met:

- The forecast reaches the memory limit before the planned end of the run, or within 48 hours if the end is unknown.
- The growth has continued for at least five epochs (eight if more than half of the memory is still free). Before that,
  it is reported only if 85% of the memory limit is in use; in a run without epochs, about half.

Other steady growth is reported as a `note`: with a `DataLoader`, after the same number of epochs; otherwise, from 256
MiB.

The forecast is the first step at which peak memory usage, including validation, exceeds the limit. It looks ahead at
most 20 times as far as Holdfast has observed the run. If the growth has not continued for enough epochs, it looks ahead
at most 1.5 times as far (3 times if about half of the memory is in use).

**When it is not reported.** Nothing is reported for caches that stop growing, even gradually, for the sawtooth pattern
of a garbage collector, for single jumps, for noise, or during warm-up. A cache that grows evenly for more than eight
epochs cannot be distinguished from a leak until it stops.

Sources: pytorch#13246 (`DataLoader` workers), pytorch#181213 and ultralytics#24065 (MPS). In one reported case, a run
was killed in epoch 94 of 100, after 70 hours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.memory_forecast import LIMITS, leak_of, planned_end
from holdfast.diagnosis.remedy_ids import LESS_AT_PEAK, LESS_MEMORY
from holdfast.diagnosis.rule import Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.schema.units import MIB, duration, size
from holdfast.testing.resources import memory_history

if TYPE_CHECKING:
    from holdfast.diagnosis.growth import Forecast
    from holdfast.diagnosis.memory_forecast import Leak

NEARLY_FULL = 0.85
"""Share of the limit above which a leak is reported although the next epochs might show that it stops."""


def judge(state: RunState) -> Finding | None:
    memory = state.attempt.memory
    if not memory.is_analysis_due or len(memory.points) < 12:
        return None
    limits = state.get_limits("memory-leak", LIMITS)
    then, now = memory.points[len(memory.points) // 3], memory.points[-1]
    min_growth = limits["least_mib"] * MIB
    if now.rss - then.rss < min_growth and (now.driver or 0.0) - (then.driver or 0.0) < min_growth:
        return None
    leak = leak_of(state)
    if leak is None or leak.growth.grown < min_growth:
        return None
    runs_out = _runs_out_in_time(state, leak, limits)
    if not runs_out and not leak.settled and (state.attempt.batches.hashed or leak.growth.grown < 2 * min_growth):
        return None
    return Finding(
        severity="warn" if runs_out else "note",
        message=_format_message(state, leak)
        + ("" if leak.settled else " Too few epochs have finished to tell whether the growth will stop."),
        evidence=_collect_evidence(state, leak),
        remedies=_select_remedies(state, leak),
    )


def _runs_out_in_time(state: RunState, leak: Leak, limits: Limits) -> bool:
    """Return whether the limit is reached before training ends and the growth was observed long enough to tell."""
    if leak.forecast is None or leak.limit is None:
        return False
    expects_epochs = state.attempt.batches.hashed or state.attempt.pace.epochs_done
    level = min(leak.growth.level, leak.held(leak.last))
    if not leak.settled and expects_epochs and level < NEARLY_FULL * leak.limit.bytes:
        return False
    end = planned_end(state)
    if end is not None and leak.by_step:
        return leak.forecast.at <= end
    return leak.seconds_until(leak.forecast.at) <= limits["hours"] * 3600.0


def _format_message(state: RunState, leak: Leak) -> str:
    steps_per_epoch = state.attempt.pace.steps_per_epoch
    if not leak.by_step:
        rate = f"{size(leak.growth.rate * 3600)} per hour"
    elif steps_per_epoch is not None:
        rate = f"{size(leak.growth.rate * steps_per_epoch)} per epoch"
    else:
        rate = f"{size(leak.growth.rate * 1000)} every 1000 steps"
    if leak.limit is None:
        return f"The {leak.which} grow steadily by {rate}; the device does not report its capacity."
    grows = f"Memory usage grows steadily by {rate}"
    if leak.forecast is None and leak.growth.settles_at < leak.limit.bytes:
        return f"{grows}; the growth slows down and should stop before memory runs out."
    if leak.forecast is None:
        return f"{grows}; it is too early to tell when memory will run out."
    return f"{grows}: at this rate, memory will run out {_format_forecast(state, leak, leak.forecast)}."


def _format_forecast(state: RunState, leak: Leak, forecast: Forecast) -> str:
    attempt = state.attempt
    soonest, latest = leak.seconds_until(forecast.earliest), leak.seconds_until(forecast.latest)
    about = duration(leak.seconds_until(forecast.at))
    span = f"in {about}" if latest < 1.5 * soonest else f"in {duration(soonest)} to {duration(latest)}"
    if not leak.by_step:
        return span
    steps = f"near step {forecast.at:.0f} ({forecast.earliest:.0f}..{forecast.latest:.0f})"
    near = attempt.pace.epoch_of(forecast.at)
    if near is None:
        return f"{steps}, {span}"
    first, last = attempt.pace.epoch_of(forecast.earliest), attempt.pace.epoch_of(forecast.latest)
    of = f" of {attempt.planned_epochs}" if attempt.planned_epochs else ""
    end = planned_end(state)
    if end is not None and forecast.at > end:
        return f"only near epoch {near} ({first}..{last}), after the planned end at {attempt.planned_epochs}"
    return f"near epoch {near} ({first}..{last}){of}, {steps}, {span}"


def _collect_evidence(state: RunState, leak: Leak) -> list[str]:
    first, last = leak.first, leak.last
    total = state.started.memory_total if state.started is not None else None
    evidence = [
        f"{leak.which}: {size(leak.held(first))} at step {first.step}, {size(leak.held(last))} at step {last.step}",
        f"{size(last.available)}" + (f" of {size(total)}" if total else "") + " of the machine's memory is left",
        *([f"the limit: {leak.limit.why}"] if leak.limit is not None else []),
        f"growth in the second half of that time relative to the first: {leak.growth.slowing:.2f}; noise: {size(leak.growth.noise)}",
    ]
    if first.own is not None and last.own is not None:
        own = last.own - first.own
        evidence.append(f"the main process accounts for {size(own)} of the growth of {size(last.rss - first.rss)}")
    if last.processes > first.processes:
        evidence.append(f"{first.processes} processes at first, {last.processes} now")
    return evidence


def _select_remedies(state: RunState, leak: Leak) -> list[str]:
    first, last = leak.first, leak.last
    grown = last.rss - first.rss
    in_workers = None not in (leak.limit, first.own, last.own) and (last.own or 0.0) - (first.own or 0.0) < 0.5 * grown
    remedies = []
    if leak.forecast is not None:
        remedies.append("save a checkpoint before memory runs out, and resume from it in a new process")
    if last.processes > first.processes:
        remedies.append(
            "stop processes that are no longer needed: loaders with persistent workers accumulate if they are recreated each epoch"
        )
    if in_workers:
        remedies.append(
            "the growth is in the loader workers: keep the Dataset's samples in NumPy arrays or tensors, not in Python lists"
            " (pytorch#13246), or use fewer workers"
        )
    else:
        remedies.append(
            "sum losses as loss.item(), and keep outputs only as .detach().cpu(): a kept loss keeps its graph alive"
        )
    if state.attempt.memory.is_shared:
        remedies.append("keep batch shapes fixed, and call torch.mps.empty_cache() after optimizer steps")
    remedies.append(f"turn off dataset caching and plots{hint(state, 'no-cache', 'no-plots')}")
    return remedies


def _simulate_cache(until: float, epoch_of: int | None) -> list[events.AnyEvent]:
    return memory_history(epoch_of=epoch_of, rss=lambda part: 2.0 + 5.0 * min(1.0, part / until))


RULE = Rule(
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    predicts_kill=True,
    charts=("memory",),
    remedies=(
        "nothing-extra",
        "fewer-workers",
        "no-workers",
        "fixed-shapes",
        "clear-cache",
        *LESS_AT_PEAK,
        *LESS_MEMORY,
    ),
    cases=lambda: [
        Case(
            "memory runs out before the planned end",
            "warn",
            memory_history(planned=100, rss=lambda part: 2.0 + 5.0 * part),
        ),
        Case("no planned end is known", "warn", memory_history(rss=lambda part: 2.0 + 5.0 * part)),
        Case(
            "no epochs are known and more than half of the memory is used",
            "warn",
            memory_history(epoch_of=None, rss=lambda part: 2.0 + 9.0 * part),
        ),
        Case(
            "no epochs are known and most of the memory is left (it may be a buffer that fills)",
            "note",
            memory_history(epoch_of=None, rss=lambda part: 2.0 + 2.0 * part),
        ),
        Case(
            "driver memory on a Mac, which resident memory does not include",
            "warn",
            memory_history(planned=100, rss=1.5, driver=lambda part: 0.5 + 6.0 * part),
        ),
        Case(
            "tensors on a device that does not report its capacity",
            "note",
            memory_history(
                planned=100, device="cuda:0", driver=lambda part: 2.0 + 6.0 * part, allocated=lambda part: 1 + 6 * part
            ),
        ),
        Case(
            "tensors on a device with its own memory",
            "warn",
            memory_history(
                planned=100,
                device="cuda:0",
                driver=lambda part: 2.0 + 6.0 * part,
                allocated=lambda part: 1 + 6 * part,
                device_limit=16.0,
            ),
        ),
        Case(
            "memory would run out only long after the end of the run",
            "note",
            memory_history(planned=30, rss=lambda part: 2.0 + part),
        ),
        Case(
            "a leak that continues after all caches are full",
            "warn",
            memory_history(planned=100, rss=lambda p: 3 * min(1, p * 5) + 4 * p),
        ),
        Case("a jump at each epoch", "warn", memory_history(planned=100, rss=lambda part: 2.0 + 0.2 * int(part * 24))),
        Case("a cache that is full after the first epoch", None, _simulate_cache(0.25, 900)),
        Case("a cache that is full after three epochs", None, _simulate_cache(0.25, 300)),
        Case("no epochs are known and a buffer stops growing", "note", _simulate_cache(0.5, None)),
        Case(
            "a garbage collector that runs from time to time",
            None,
            memory_history(rss=lambda part: 2.0 + 3.0 * (part * 12 % 1)),
        ),
        Case("a single jump", None, memory_history(rss=lambda part: 2.0 + 4.0 * (part > 0.6))),
        Case("growth that levels off", None, memory_history(rss=lambda part: 2.0 + 2.0 * math.log(1 + 60 * part))),
        Case("memory that does not grow", None, memory_history()),
        Case("other programs use the memory", None, memory_history(others=lambda part: 2.0 + 8.0 * part)),
        Case("the start of a run", None, memory_history(samples=12, rss=lambda part: 2.0 + 3.0 * part)),
    ],
)
