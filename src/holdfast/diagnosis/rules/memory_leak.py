"""The training's memory grows steadily, and will be used up.

**What it means.** With every step or epoch the training holds a little more, and nothing comes back. The forecast says near
which step or epoch there is nothing left: then the system swaps, and at last kills the training without a word.

**Why it happens.** A graph that is kept alive (`total += loss` instead of `loss.item()`), a list that collects outputs, hooks
that are added again and again, a Dataset whose Python lists are copied page by page into every loader worker, a device
driver that caches one graph for every shape of input (MPS), a library's leak.

**What to do.** Find what is kept. Until then: save often, and go on in a fresh process from the last checkpoint before the
forecast is reached.

**What it needs.** Samples of memory over some time, after the first step. A warning needs a limit that is met before the
planned end, or within two days where no end is known, and a growth that went on from epoch to epoch: through five epochs, or
through eight while more than half of the memory is left. The forecast may lie 20 times as far ahead as the window it is made
from. It is the step at which the highest places of an epoch, or the next validation, pass the limit. Where no epochs tell whether
it stops by itself, half of what there was must be gone; in the first epochs of a loader almost all. The limit is the plan's
budget, else what was available plus what the training held at the last looks; on a Mac the driver's memory counts, because it is
the same memory. `budget_gib` sets a lower limit by hand.

**When it stays silent.** Caches that fill and stop (also those that fill ever slower), saw-teeth of a garbage collector,
single jumps, noise, the warm-up. A steady growth that does not reach the limit in time is a note. A cache that fills
evenly for more than eight epochs looks like a leak until it stops.

Sources: pytorch#13246 (loader workers), pytorch#181213 and ultralytics#24065 (MPS); the fourth field report was killed in
epoch 94 of 100 after 70 hours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.memory_forecast import LIMITS, leak_of, planned_end
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.units import MIB, duration, size
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.resources import life

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.growth import Forecast
    from holdfast.diagnosis.memory_forecast import Leak
    from holdfast.diagnosis.run_state import RunState

NEARLY_GONE = 0.85
"""Of the limit: then it is said although the next epochs might show that it stops."""


def judge(state: RunState) -> Finding | None:
    memory = state.attempt.memory
    if not memory.is_analysis_due or len(memory.points) < 12:
        return None
    limits = state.tuned("memory-leak", LIMITS)
    then, now = memory.points[len(memory.points) // 3], memory.points[-1]
    least = limits["least_mib"] * MIB
    if now.rss - then.rss < least and (now.driver or 0.0) - (then.driver or 0.0) < least:
        return None
    leak = leak_of(state)
    if leak is None or leak.growth.grown < least:
        return None
    ahead = _is_ahead(state, leak, limits)
    if not ahead and not leak.settled and (state.attempt.batches.hashed or leak.growth.grown < 2 * least):
        return None
    return Finding(
        rule="memory-leak",
        severity="warn" if ahead else "note",
        message=_message(state, leak) + ("" if leak.settled else " No epochs tell yet whether it stops by itself."),
        evidence=_evidence(state, leak),
        remedies=_remedies(state, leak),
    )


def _is_ahead(state: RunState, leak: Leak, limits: Mapping[str, float]) -> bool:
    """The limit is met before the training is done, and the growth was watched long enough to say so."""
    if leak.forecast is None or leak.limit is None:
        return False
    epochs_will_tell = state.attempt.batches.hashed or state.attempt.pace.epochs_done
    level = min(leak.growth.level, leak.held(leak.last))
    if not leak.settled and epochs_will_tell and level < NEARLY_GONE * leak.limit.bytes:
        return False
    end = planned_end(state)
    if end is not None and leak.by_step:
        return leak.forecast.at <= end
    return leak.seconds_until(leak.forecast.at) <= limits["hours"] * 3600.0


def _message(state: RunState, leak: Leak) -> str:
    each = state.attempt.pace.steps_per_epoch
    if not leak.by_step:
        rate = f"{size(leak.growth.rate * 3600)} an hour"
    elif each is not None:
        rate = f"{size(leak.growth.rate * each)} an epoch"
    else:
        rate = f"{size(leak.growth.rate * 1000)} every 1000 steps"
    if leak.limit is None:
        return f"The training's {leak.which} grow steadily by {rate}; how much the device can hold is not known here."
    grows = f"The training's memory grows steadily by {rate}"
    if leak.forecast is None and leak.growth.settles_at < leak.limit.bytes:
        return f"{grows}; it slows down and should come to rest before memory is used up."
    if leak.forecast is None:
        return f"{grows}; when memory is used up cannot be said yet."
    return f"{grows}: if that goes on, memory is used up {_when(state, leak, leak.forecast)}."


def _when(state: RunState, leak: Leak, forecast: Forecast) -> str:
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


def _evidence(state: RunState, leak: Leak) -> list[str]:
    first, last = leak.first, leak.last
    total = state.started.memory_total if state.started is not None else None
    evidence = [
        f"{leak.which}: {size(leak.held(first))} at step {first.step}, {size(leak.held(last))} at step {last.step}",
        f"{size(last.available)} of the machine's memory left" + (f" of {size(total)}" if total else ""),
        *([f"the limit: {leak.limit.why}"] if leak.limit is not None else []),
        f"what the second half of that time grew, against the first: {leak.growth.slowing:.2f}; noise: {size(leak.growth.noise)}",
    ]
    if first.own is not None and last.own is not None:
        own = last.own - first.own
        evidence.append(f"the process that trains grew by {size(own)} of {size(last.rss - first.rss)}")
    if last.processes > first.processes:
        evidence.append(f"{first.processes} processes then, {last.processes} now")
    return evidence


def _remedies(state: RunState, leak: Leak) -> list[str]:
    first, last = leak.first, leak.last
    grown = last.rss - first.rss
    elsewhere = None not in (leak.limit, first.own, last.own) and (last.own or 0.0) - (first.own or 0.0) < 0.5 * grown
    remedies = []
    if leak.forecast is not None:
        remedies.append("save a checkpoint before that, and go on from it in a fresh process")
    if last.processes > first.processes:
        remedies.append(
            "end processes that are no longer needed: loaders with persistent workers made anew each epoch pile up"
        )
    if elsewhere:
        remedies.append(
            "it grows in loader workers: keep the Dataset's samples in NumPy arrays or tensors, not in Python lists"
            " (pytorch#13246), or use fewer workers"
        )
    else:
        remedies.append(
            "add losses up as loss.item(), and keep outputs only as .detach().cpu(): a kept loss keeps its graph"
        )
    if state.attempt.memory.on_mps:
        remedies.append("keep the shapes of batches fixed, and call torch.mps.empty_cache() after optimizer steps")
    remedies.append("switch off dataset caching and plots (Ultralytics: cache=False plots=False)")
    return remedies


def _filling(until: float, epoch_of: int | None) -> list[events.AnyEvent]:
    return life(epoch_of=epoch_of, rss=lambda part: 2.0 + 5.0 * min(1.0, part / until))


RULE = Rule(
    id="memory-leak",
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("used up before the planned end", life(planned=100, rss=lambda part: 2.0 + 5.0 * part), "warn"),
        Case("no end is known", life(rss=lambda part: 2.0 + 5.0 * part), "warn"),
        Case(
            "no epochs are known, and more than half is gone",
            life(epoch_of=None, rss=lambda part: 2.0 + 9.0 * part),
            "warn",
        ),
        Case(
            "no epochs are known, and most is left: it may be a buffer that fills",
            life(epoch_of=None, rss=lambda part: 2.0 + 2.0 * part),
            "note",
        ),
        Case(
            "the driver's memory on a Mac, which resident memory does not show",
            life(planned=100, rss=1.5, driver=lambda part: 0.5 + 6.0 * part),
            "warn",
        ),
        Case(
            "tensors on a device that does not say what it can hold",
            life(
                planned=100, device="cuda:0", driver=lambda part: 2.0 + 6.0 * part, allocated=lambda part: 1 + 6 * part
            ),
            "note",
        ),
        Case(
            "tensors on a device with memory of its own",
            life(
                planned=100,
                device="cuda:0",
                driver=lambda part: 2.0 + 6.0 * part,
                allocated=lambda part: 1 + 6 * part,
                device_limit=16.0,
            ),
            "warn",
        ),
        Case("it would take far longer than the training", life(planned=30, rss=lambda part: 2.0 + part), "note"),
        Case("a leak after caches were filled", life(planned=100, rss=lambda p: 3 * min(1, p * 5) + 4 * p), "warn"),
        Case("a step up at each epoch", life(planned=100, rss=lambda part: 2.0 + 0.2 * int(part * 24)), "warn"),
        Case("a cache that fills in the first epoch and stops", _filling(0.25, 900), None),
        Case("a cache that fills in the first three epochs and stops", _filling(0.25, 300), None),
        Case("a buffer that fills and stops, with no epochs", _filling(0.5, None), "note"),
        Case("a collector that runs now and then", life(rss=lambda part: 2.0 + 3.0 * (part * 12 % 1)), None),
        Case("one jump", life(rss=lambda part: 2.0 + 4.0 * (part > 0.6)), None),
        Case("growth that dies away", life(rss=lambda part: 2.0 + 2.0 * math.log(1 + 60 * part)), None),
        Case("nothing grows", life(), None),
        Case("others take the memory", life(others=lambda part: 2.0 + 8.0 * part), None),
        Case("the very beginning", life(samples=12, rss=lambda part: 2.0 + 3.0 * part), None),
    ],
)
