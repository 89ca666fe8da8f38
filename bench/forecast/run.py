"""Accuracy of the out-of-memory forecast, on memory histories of trainings whose kill step is known. See README.md."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from lives import MemoryHistory

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.memory_forecast import Leak, leak_of
from holdfast.diagnosis.planned_restart import find_restart_reason
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.run_state import RunState, load_run_state
from holdfast.schema import events
from holdfast.schema.plan import Plan
from holdfast.storage.journal import Entry
from holdfast.testing.histories import entries

if TYPE_CHECKING:
    from holdfast.diagnosis.growth import Forecast

SEED = 11
PLAN = Plan(command=["python", "train.py"], cwd="/work")
MAX_ERROR = 0.10
"""Maximum error of the forecast step when half of the memory is used, as a fraction of the step of the kill."""
Kind = Callable[[random.Random], MemoryHistory]


# --- leaks ------------------------------------------------------------------------------------------------------------


def draw_history(rng: random.Random, name: str) -> MemoryHistory:
    """Draw a machine and a training, with everything that makes its memory vary."""
    limit = math.exp(rng.uniform(math.log(1.0), math.log(64.0)))
    validated = rng.random() < 0.7
    epoch_s = math.exp(rng.uniform(math.log(15.0), math.log(400.0)))
    warm, tau = rng.choice([0.0, rng.uniform(0.0, 0.05)]) * limit, rng.uniform(0.05, 0.5)
    return MemoryHistory(
        name=name,
        limit=limit,
        base=rng.uniform(0.15, 0.45) * limit,
        cache=lambda x: warm * (1.0 - math.exp(-x / tau)),
        noise=rng.uniform(0.0005, 0.005) * limit,
        tooth=rng.choice([0.0, rng.uniform(0.0, 0.03)]) * limit,
        tooth_epochs=rng.uniform(0.05, 1.7),
        spike=rng.uniform(0.0, 0.15) * limit if validated else 0.0,
        validation_s=rng.uniform(0.1, 0.3) * epoch_s if validated else 0.0,
        steps=round(math.exp(rng.uniform(math.log(20), math.log(2000)))),
        epoch_s=epoch_s,
        mps=rng.random() < 0.25,
        seed=rng.randrange(1 << 30),
    )


def _draw_epochs(rng: random.Random, fewest: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(fewest), math.log(most)))


def linear(rng: random.Random, fewest: float = 11.0, most: float = 120.0) -> MemoryHistory:
    history = draw_history(rng, "with every step")
    return replace(history, leak=(history.limit - history.base) / _draw_epochs(rng, fewest, most))


def stepwise(rng: random.Random, fewest: float = 11.0, most: float = 120.0) -> MemoryHistory:
    history = draw_history(rng, "a jump each epoch")
    return replace(
        history, jump=(history.limit - history.base) / _draw_epochs(rng, fewest, most), uneven=rng.uniform(0, 0.2)
    )


def both_ways(rng: random.Random) -> MemoryHistory:
    history = draw_history(rng, "with every step and at each epoch")
    each = (history.limit - history.base) / _draw_epochs(rng, 11.0, 120.0)
    return replace(history, leak=0.5 * each, jump=0.5 * each)


def after_a_cache(rng: random.Random) -> MemoryHistory:
    """Caches fill in one to three epochs; a leak remains."""
    history = draw_history(rng, "after caches have filled")
    room = history.limit - history.base
    filled, epochs = rng.uniform(0.1, 0.3) * room, rng.uniform(1.0, 3.0)
    each = (room - filled) / _draw_epochs(rng, 30.0, 120.0)
    leaks = {"leak": each} if rng.random() < 0.5 else {"jump": each}
    return replace(
        history, cache=lambda x: filled * min(1.0, x / epochs), leaks_from=rng.choice([0.0, epochs]), **leaks
    )


def seldom_validated(rng: random.Random) -> MemoryHistory:
    history = linear(rng, 70.0, 150.0)
    return replace(
        history,
        name="validated every five epochs",
        spike=rng.uniform(0.05, 0.15) * history.limit,
        validation_s=0.3 * history.epoch_s,
        validated_every=5,
    )


def short(rng: random.Random) -> MemoryHistory:
    make = rng.choice([linear, stepwise])
    return replace(make(rng, 5.0, 10.0), name="killed within ten epochs (not required)")


def without_epochs(rng: random.Random) -> MemoryHistory:
    return replace(linear(rng), name="no epochs are seen (not required)", epochs_seen=False)


LEAKS: list[tuple[Kind, bool]] = [
    (linear, True),
    (stepwise, True),
    (both_ways, True),
    (after_a_cache, True),
    (seldom_validated, True),
    (short, False),
    (without_epochs, False),
]


@dataclass
class ForecastResult:
    """The forecast for one leak when half of the memory is used."""

    history: MemoryHistory
    killed_at: int
    leak: Leak | None

    @property
    def forecast(self) -> Forecast | None:
        return self.leak.forecast if self.leak is not None else None

    @property
    def error(self) -> float:
        return abs(self.forecast.at - self.killed_at) / self.killed_at if self.forecast is not None else math.inf

    @property
    def covered(self) -> bool:
        return self.forecast is not None and self.forecast.earliest <= self.killed_at <= self.forecast.latest


def evaluate_forecast(history: MemoryHistory) -> ForecastResult:
    killed_at = history.killed_at()
    assert killed_at is not None
    state = load_run_state(entries(history.events(min(history.half_used_epoch(), killed_at / history.steps))))
    return ForecastResult(history, killed_at, leak_of(state))


# --- memory that fills and stops --------------------------------------------------------------------------------------


def filling(rng: random.Random, name: str, shape: Callable[[float], float], most: float = 0.7) -> MemoryHistory:
    """Return a history whose cache fills. `shape` maps epochs to 0..1."""
    history = draw_history(rng, name)
    filled = rng.uniform(0.2, most) * (history.limit - history.base - history.spike - history.tooth) / shape(1000.0)
    return replace(history, cache=lambda x: filled * shape(x), planned=1000)


def in_one_epoch(rng: random.Random) -> MemoryHistory:
    return filling(rng, "fills in one epoch", lambda x: min(1.0, x))


def in_three_epochs(rng: random.Random) -> MemoryHistory:
    epochs = rng.uniform(1.5, 3.5)
    return filling(rng, "fills in up to three epochs", lambda x: min(1.0, x / epochs))


def in_steps(rng: random.Random) -> MemoryHistory:
    steps = rng.choice([2, 3, 4])
    return filling(rng, "fills in two to four steps", lambda x: min(steps, int(x)) / steps)


def slower_and_slower(rng: random.Random) -> MemoryHistory:
    tau = rng.uniform(0.7, 6.0)
    return filling(rng, "fills more and more slowly", lambda x: 1.0 - math.exp(-x / tau))


def smaller_and_smaller_steps(rng: random.Random) -> MemoryHistory:
    left = rng.uniform(0.4, 0.75)
    return filling(rng, "fills in smaller and smaller steps", lambda x: 1.0 - left ** int(x))


def allocator_growth(rng: random.Random) -> MemoryHistory:
    """An allocator that sees fewer and fewer new sizes."""
    fast = rng.uniform(1.0, 20.0)
    return filling(rng, "an allocator whose growth slows down", lambda x: math.log(1.0 + fast * x))


def least_recently_used(rng: random.Random) -> MemoryHistory:
    """A cache that grows evenly up to its size, which is less than half of the memory."""
    epochs = rng.uniform(2.0, 6.0)
    return filling(rng, "a bounded cache: fills evenly for up to six epochs", lambda x: min(1.0, x / epochs), most=0.4)


def steady(rng: random.Random) -> MemoryHistory:
    return replace(draw_history(rng, "nothing grows"), planned=1000)


CACHES: list[Kind] = [
    in_one_epoch,
    in_three_epochs,
    in_steps,
    slower_and_slower,
    smaller_and_smaller_steps,
    allocator_growth,
    least_recently_used,
    steady,
]


@dataclass
class CacheResult:
    """The forecasts and warnings for one history without a kill."""

    history: MemoryHistory
    forecasts: list[int]
    """Epochs with a certain forecast of a kill before the planned end."""
    unsure: list[int]
    warned: list[str]


def evaluate_cache(history: MemoryHistory, epochs: float = 40.0) -> CacheResult:
    state = RunState()
    engine = Engine(state, [by_id()["memory-leak"]])
    result = CacheResult(history, [], [], [])
    for entry in entries(history.events(epochs)):
        for finding in engine.take(entry):
            state.fold(Entry(events.FindingMade(at=entry.event.at, finding=finding), 1))
            if finding.severity != "note":
                result.warned.append(finding.message)
        memory = state.attempts[-1].memory if state.attempts else None
        if memory is not None and isinstance(entry.event, events.Sample) and memory.is_analysis_due:
            leak = leak_of(state)
            forecast = leak.forecast if leak is not None else None
            if forecast is not None and (forecast.at <= (history.planned or math.inf) * history.steps):
                (result.forecasts if leak.settled else result.unsure).append(state.attempt.epoch or 0)
    return result


# --- planned restarts -------------------------------------------------------------------------------------------------


@dataclass
class Restart:
    """When a planned restart was requested."""

    part: float | None
    """Fraction of the steps to the kill; None if there was no request."""
    held: float = 0.0
    """Memory in use while training, as a fraction of the limit."""


def find_restart(history: MemoryHistory, epochs: float) -> Restart:
    """Find the first request for a restart. Checks every third sample, to save time."""
    state = RunState()
    for entry in entries(history.events(epochs)):
        state.fold(entry)
        due = isinstance(entry.event, events.Sample) and state.attempt.memory.count % 3 == 0
        if due and find_restart_reason(state, PLAN) is not None:
            step = state.attempt.last_step
            return Restart(step / (epochs * history.steps), history.memory_at(step / history.steps) / history.limit)
    return Restart(None)


def restart_rows(lives: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    for place, (kind, _) in enumerate(LEAKS):
        rng = random.Random(seed * 100 + place)
        histories = [replace(kind(rng), planned=1000) for _ in range(lives)]
        restarts = [find_restart(history, (history.killed_at() or 0) / history.steps) for history in histories]
        parts = [one.part for one in restarts if one.part is not None]
        yield (
            [
                histories[0].name,
                f"{len(parts)}/{lives}",
                f"{min(parts):.0%}",
                f"{median(parts):.0%}",
                f"{min(one.held for one in restarts if one.part is not None):.0%}",
            ],
            len(parts) == lives,
        )
    for place, cache in enumerate(CACHES):
        rng = random.Random(seed * 100 + 50 + place)
        histories = [cache(rng) for _ in range(lives)]
        forecast_count = sum(find_restart(history, 40.0).part is not None for history in histories)
        yield [histories[0].name, f"{forecast_count}/{lives}", "", "", ""], not forecast_count


# --- the table --------------------------------------------------------------------------------------------------------


def percentile(values: list[float], which: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(which * len(ordered)) - 1)]


def leak_rows(lives: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    for place, (kind, required) in enumerate(LEAKS):
        rng = random.Random(seed * 100 + place)
        results = [evaluate_forecast(kind(rng)) for _ in range(lives)]
        errors = [one.error for one in results]
        forecast_count = sum(one.forecast is not None for one in results)
        sure_count = sum(one.forecast is not None and one.leak.settled for one in results)
        within = sum(error <= MAX_ERROR for error in errors)
        met = not required or within == lives
        yield (
            [
                results[0].history.name,
                f"{forecast_count}/{lives}",
                f"{sure_count}",
                f"{median(errors):.1%}",
                f"{percentile(errors, 0.95):.1%}",
                f"{max(errors):.1%}",
                f"{within}/{lives}",
                f"{sum(one.covered for one in results)}/{lives}",
            ],
            met,
        )


def cache_rows(lives: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    for place, kind in enumerate(CACHES):
        rng = random.Random(seed * 100 + 50 + place)
        results = [evaluate_cache(kind(rng)) for _ in range(lives)]
        false = sum(bool(result.forecasts) for result in results)
        warned = sum(bool(result.warned) for result in results)
        unsure = sum(bool(result.unsure) for result in results)
        yield (
            [results[0].history.name, f"{lives - false}/{lives}", f"{lives - warned}/{lives}", f"{unsure}"],
            not (false or warned),
        )


def show(title: list[str], rows: list[tuple[list[str], bool]]) -> bool:
    print("| " + " | ".join([*title, ""]) + " |")
    print("|---" * (len(title) + 1) + "|")
    for cells, met in rows:
        print("| " + " | ".join([*cells, "met" if met else "NOT MET"]) + " |")
    print()
    return all(met for _, met in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a requirement is not met")
    parser.add_argument("--lives", type=int, default=20, help="number of histories of each kind")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    began = time.process_time()
    print(f"{options.lives} histories of each kind, seed {options.seed}\n")
    leaks = show(
        ["leak", "forecast", "certain", "median error", "95th percentile", "worst", "within 10%", "in the interval"],
        list(leak_rows(options.lives, options.seed)),
    )
    caches = show(
        ["fills and stops", "no certain forecast", "no warning", "with an uncertain forecast"],
        list(cache_rows(max(1, options.lives // 2), options.seed)),
    )
    restarts = show(
        ["planned restarts", "requested before the kill", "earliest", "median", "least memory in use"],
        list(restart_rows(max(1, options.lives // 6), options.seed)),
    )
    print(f"{time.process_time() - began:.0f} s of processor time", file=sys.stderr)
    return 1 if options.check and not (leaks and caches and restarts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
