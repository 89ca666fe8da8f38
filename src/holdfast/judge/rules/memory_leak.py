"""The training's memory grows steadily, and will be used up.

**What it means.** With every step or epoch the training holds a little more, and nothing comes back. The forecast says near
which step or epoch there is nothing left: then the system swaps, and at last kills the training without a word.

**Why it happens.** A graph that is kept alive (`total += loss` instead of `loss.item()`), a list that collects outputs, hooks
that are added again and again, a Dataset whose Python lists are copied page by page into every loader worker, a device
driver that caches one graph for every shape of input (MPS), a library's leak.

**What to do.** Find what is kept. Until then: save often, and go on in a fresh process from the last checkpoint before the
forecast is reached.

**What it needs.** Samples of memory over some time, after the first step. A warning needs a limit that is met before the
planned end, or within two days where no end is known, and a growth that was watched long enough: the forecast may lie 20 times
as far ahead as the window it is made from once four epochs are done, but where no epochs tell whether it stops by itself, half of
what there was must be gone. Memory left is what was available plus what the training held at the last look; on a Mac the driver's
memory counts, because it is the same memory. `budget_gib` sets a lower limit by hand.

**When it stays silent.** Caches that fill and stop (also those that fill ever slower), saw-teeth of a garbage collector,
single jumps, noise, the warm-up; and in the first four epochs of a loader, while half is left. A steady growth that does not reach the limit in time is a note.

Sources: pytorch#13246 (loader workers), pytorch#181213 and ultralytics#24065 (MPS); the fourth field report was killed in
epoch 94 of 100 after 70 hours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from holdfast.judge.amounts import GIB, MIB, duration, size
from holdfast.judge.cases_resources import life
from holdfast.judge.forecast import Forecast, Growth, growth, meets
from holdfast.judge.rule import Case, Rule
from holdfast.words import events
from holdfast.words.verdicts import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.judge.monitors.memory import Point
    from holdfast.judge.picture import AttemptPicture, Picture

LIMITS = {
    "least_mib": 128.0,
    "budget_gib": 0.0,
    "epochs": 4,
    "reach": 20.0,
    "reach_without_epochs": 1.5,
    "hours": 48.0,
}


class Leak(NamedTuple):
    points: list[Point]
    """Since the first step."""
    held: Callable[[Point], float]
    which: str
    by_step: bool
    growth: Growth
    first: Point
    last: Point
    """Of the window that the growth was seen in."""
    limit: float | None = None
    forecast: Forecast | None = None


def judge(picture: Picture) -> Finding | None:
    memory = picture.attempt.memory
    if not memory.time_to_look or len(memory.points) < 12:
        return None
    limits = picture.tuned("memory-leak", LIMITS)
    then, now = memory.points[len(memory.points) // 3], memory.points[-1]
    least = limits["least_mib"] * MIB
    if now.rss - then.rss < least and (now.driver or 0.0) - (then.driver or 0.0) < least:
        return None
    leak = _leak(picture, limits) or _leak_on_device(picture)
    if leak is None or leak.growth.grown < least:
        return None
    settled = _is_settled(picture.attempt, leak, limits)
    ahead = _is_ahead(picture.attempt, leak, limits, settled=settled)
    if not ahead and not settled and (picture.attempt.batches.hashed or leak.growth.grown < 2 * least):
        return None
    return Finding(
        rule="memory-leak",
        severity="warn" if ahead else "note",
        message=_message(picture.attempt, leak)
        + ("" if settled else " No epochs tell yet whether it stops by itself."),
        evidence=_evidence(picture, leak),
        remedies=_remedies(picture, leak),
    )


def _leak(picture: Picture, limits: Mapping[str, float]) -> Leak | None:
    memory = picture.attempt.memory
    blind = memory.blind

    def held(point: Point) -> float:
        return point.rss + (point.driver or 0.0) if blind else point.rss

    which = "resident and driver memory together" if blind else "memory of all its processes"
    found = _growing(picture.attempt, held, which)
    if found is None:
        return None
    last = found.points[-1]
    limit = held(last) + last.available
    total = picture.started.memory_total if picture.started is not None else None
    limit = min(limit, total or limit, limits["budget_gib"] * GIB or limit)
    spikes = sorted(point.peak - point.rss for point in found.points[-(len(found.points) // 3) :])
    return found._replace(limit=limit, forecast=meets(found.growth, limit - spikes[-1 - len(spikes) // 10]))


def _leak_on_device(picture: Picture) -> Leak | None:
    """A device with memory of its own; there is a forecast where it says what it can hold."""
    device = picture.attempt.memory.device
    if device is None or device.allocated is None or picture.attempt.memory.on_mps:
        return None
    found = _growing(picture.attempt, lambda point: point.allocated or 0.0, f"tensors on {device.device}")
    if found is None or device.limit is None:
        return found
    return found._replace(limit=float(device.limit), forecast=meets(found.growth, device.limit))


def _growing(attempt: AttemptPicture, held: Callable[[Point], float], which: str) -> Leak | None:
    by_step = attempt.first_step_at is not None
    points = [point for point in attempt.memory.points if point.at >= (attempt.first_step_at or 0.0)]
    found = growth([(float(point.step) if by_step else point.at, held(point)) for point in points])
    if found is None:
        return None
    first = next(point for point in points if (point.step if by_step else point.at) >= found.since)
    return Leak(points, held, which, by_step, found, first, points[-1])


def _is_settled(attempt: AttemptPicture, leak: Leak, limits: Mapping[str, float]) -> bool:
    """Whole epochs went by and it grew through all of them: what is filled once in an epoch is full by then."""
    passed = sum(epoch.at >= leak.first.at for epoch in attempt.pace.epochs)
    return attempt.pace.epochs_done >= limits["epochs"] and passed >= 0.5 * limits["epochs"]


def _is_ahead(attempt: AttemptPicture, leak: Leak, limits: Mapping[str, float], *, settled: bool) -> bool:
    """The limit is met before the training is done, and the growth was watched long enough to say so."""
    if leak.forecast is None:
        return False
    way = leak.forecast.at - leak.growth.until
    if way > limits["reach" if settled else "reach_without_epochs"] * (leak.growth.until - leak.growth.since):
        return False
    end = attempt.pace.last_step_of(attempt.planned_epochs)
    if end is not None and leak.by_step:
        return leak.forecast.at <= end
    return _seconds(leak, leak.forecast.at) <= limits["hours"] * 3600.0


def _seconds(leak: Leak, x: float) -> float:
    """From now until the forecast's x."""
    if not leak.by_step:
        return x - leak.growth.until
    first, last = leak.first, leak.last
    return (
        (x - leak.growth.until) * (last.at - first.at) / (last.step - first.step)
        if last.step > first.step
        else math.inf
    )


def _message(attempt: AttemptPicture, leak: Leak) -> str:
    each = attempt.pace.steps_per_epoch
    if not leak.by_step:
        rate = f"{size(leak.growth.rate * 3600)} an hour"
    elif each is not None:
        rate = f"{size(leak.growth.rate * each)} an epoch"
    else:
        rate = f"{size(leak.growth.rate * 1000)} every 1000 steps"
    if leak.limit is None:
        return f"The training's {leak.which} grow steadily by {rate}; how much the device can hold is not known here."
    grows = f"The training's memory grows steadily by {rate}"
    if leak.forecast is None:
        return f"{grows}; it slows down and should come to rest before memory is used up."
    return f"{grows}: if that goes on, memory is used up {_when(attempt, leak, leak.forecast)}."


def _when(attempt: AttemptPicture, leak: Leak, forecast: Forecast) -> str:
    soonest, latest = _seconds(leak, forecast.earliest), _seconds(leak, forecast.latest)
    about = duration(_seconds(leak, forecast.at))
    span = f"in {about}" if latest < 1.5 * soonest else f"in {duration(soonest)} to {duration(latest)}"
    if not leak.by_step:
        return span
    steps = f"near step {forecast.at:.0f} ({forecast.earliest:.0f}..{forecast.latest:.0f})"
    near = attempt.pace.epoch_of(forecast.at)
    if near is None:
        return f"{steps}, {span}"
    first, last = attempt.pace.epoch_of(forecast.earliest), attempt.pace.epoch_of(forecast.latest)
    of = f" of {attempt.planned_epochs}" if attempt.planned_epochs else ""
    end = attempt.pace.last_step_of(attempt.planned_epochs)
    if end is not None and forecast.at > end:
        return f"only near epoch {near} ({first}..{last}), after the planned end at {attempt.planned_epochs}"
    return f"near epoch {near} ({first}..{last}){of}, {steps}, {span}"


def _evidence(picture: Picture, leak: Leak) -> list[str]:
    first, last = leak.first, leak.last
    total = picture.started.memory_total if picture.started is not None else None
    evidence = [
        f"{leak.which}: {size(leak.held(first))} at step {first.step}, {size(leak.held(last))} at step {last.step}",
        f"{size(last.available)} of the machine's memory left" + (f" of {size(total)}" if total else ""),
        f"what the second half of that time grew, against the first: {leak.growth.slowing:.2f}; noise: {size(leak.growth.noise)}",
    ]
    if first.own is not None and last.own is not None:
        own = last.own - first.own
        evidence.append(f"the process that trains grew by {size(own)} of {size(last.rss - first.rss)}")
    if last.processes > first.processes:
        evidence.append(f"{first.processes} processes then, {last.processes} now")
    return evidence


def _remedies(picture: Picture, leak: Leak) -> list[str]:
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
    if picture.attempt.memory.on_mps:
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
        Case("the very beginning", life(looks=12, rss=lambda part: 2.0 + 3.0 * part), None),
    ],
)
