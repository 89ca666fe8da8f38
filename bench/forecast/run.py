"""How well the end of memory is foretold: lives of trainings with the step that kills them known. See README.md beside this file."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from lives import Life

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.memory_forecast import MemoryForecast, memory_forecast
from holdfast.diagnosis.planned_restart import find_restart_reason
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.run_state import RunState, load_run_state
from holdfast.schema import events
from holdfast.schema.plan import Plan
from holdfast.storage.journal import Entry
from holdfast.testing.histories import entries

SEED = 11
PLAN = Plan(command=["python", "train.py"], cwd="/work")
PROMISE = 0.10
"""The error of the forecast step, once half of the memory is used, as a part of the step that kills."""
Kind = Callable[[random.Random], Life]


# --- leaks ------------------------------------------------------------------------------------------------------------


def any_life(dice: random.Random, name: str) -> Life:
    """A machine and a training, with all that goes up and down in it."""
    limit = math.exp(dice.uniform(math.log(1.0), math.log(64.0)))
    validated = dice.random() < 0.7
    epoch_s = math.exp(dice.uniform(math.log(15.0), math.log(400.0)))
    warm, tau = dice.choice([0.0, dice.uniform(0.0, 0.05)]) * limit, dice.uniform(0.05, 0.5)
    return Life(
        name=name,
        limit=limit,
        base=dice.uniform(0.15, 0.45) * limit,
        cache=lambda x: warm * (1.0 - math.exp(-x / tau)),
        noise=dice.uniform(0.0005, 0.005) * limit,
        tooth=dice.choice([0.0, dice.uniform(0.0, 0.03)]) * limit,
        tooth_epochs=dice.uniform(0.05, 1.7),
        spike=dice.uniform(0.0, 0.15) * limit if validated else 0.0,
        validation_s=dice.uniform(0.1, 0.3) * epoch_s if validated else 0.0,
        steps=round(math.exp(dice.uniform(math.log(20), math.log(2000)))),
        epoch_s=epoch_s,
        mps=dice.random() < 0.25,
        seed=dice.randrange(1 << 30),
    )


def _epochs_to_live(dice: random.Random, fewest: float, most: float) -> float:
    return math.exp(dice.uniform(math.log(fewest), math.log(most)))


def linear(dice: random.Random, fewest: float = 11.0, most: float = 120.0) -> Life:
    life = any_life(dice, "with every step")
    return replace(life, leak=(life.limit - life.base) / _epochs_to_live(dice, fewest, most))


def stepwise(dice: random.Random, fewest: float = 11.0, most: float = 120.0) -> Life:
    life = any_life(dice, "a jump each epoch")
    return replace(
        life, jump=(life.limit - life.base) / _epochs_to_live(dice, fewest, most), uneven=dice.uniform(0, 0.2)
    )


def both(dice: random.Random) -> Life:
    life = any_life(dice, "with every step and at each epoch")
    each = (life.limit - life.base) / _epochs_to_live(dice, 11.0, 120.0)
    return replace(life, leak=0.5 * each, jump=0.5 * each)


def after_a_cache(dice: random.Random) -> Life:
    """Caches fill in one to three epochs, and then it leaks on."""
    life = any_life(dice, "after caches have filled")
    room = life.limit - life.base
    filled, epochs = dice.uniform(0.1, 0.3) * room, dice.uniform(1.0, 3.0)
    each = (room - filled) / _epochs_to_live(dice, 30.0, 120.0)
    leaks = {"leak": each} if dice.random() < 0.5 else {"jump": each}
    return replace(life, cache=lambda x: filled * min(1.0, x / epochs), leaks_from=dice.choice([0.0, epochs]), **leaks)


def seldom_validated(dice: random.Random) -> Life:
    life = linear(dice, 70.0, 150.0)
    return replace(
        life,
        name="validated every five epochs",
        spike=dice.uniform(0.05, 0.15) * life.limit,
        validation_s=0.3 * life.epoch_s,
        validated_every=5,
    )


def short(dice: random.Random) -> Life:
    make = dice.choice([linear, stepwise])
    return replace(make(dice, 5.0, 10.0), name="killed within ten epochs (not promised)")


def without_epochs(dice: random.Random) -> Life:
    return replace(linear(dice), name="no epochs are seen (not promised)", epochs_seen=False)


LEAKS: list[tuple[Kind, bool]] = [
    (linear, True),
    (stepwise, True),
    (both, True),
    (after_a_cache, True),
    (seldom_validated, True),
    (short, False),
    (without_epochs, False),
]


@dataclass
class Foretold:
    """What was said of one leak when half of the memory was used."""

    life: Life
    killed_at: int
    forecast: MemoryForecast | None

    @property
    def error(self) -> float:
        return abs(self.forecast.at - self.killed_at) / self.killed_at if self.forecast is not None else math.inf

    @property
    def covered(self) -> bool:
        return self.forecast is not None and self.forecast.earliest <= self.killed_at <= self.forecast.latest


def foretell(life: Life) -> Foretold:
    killed_at = life.killed_at()
    assert killed_at is not None
    state = load_run_state(entries(life.events(min(life.half_used_at(), killed_at / life.steps))))
    return Foretold(life, killed_at, memory_forecast(state))


# --- what fills and stops ---------------------------------------------------------------------------------------------


def filling(dice: random.Random, name: str, shape: Callable[[float], float], most: float = 0.7) -> Life:
    """`shape` goes from 0 to 1 over epochs."""
    life = any_life(dice, name)
    filled = dice.uniform(0.2, most) * (life.limit - life.base - life.spike - life.tooth) / shape(1000.0)
    return replace(life, cache=lambda x: filled * shape(x), planned=1000)


def in_one_epoch(dice: random.Random) -> Life:
    return filling(dice, "fills in one epoch", lambda x: min(1.0, x))


def in_three_epochs(dice: random.Random) -> Life:
    epochs = dice.uniform(1.5, 3.5)
    return filling(dice, "fills in up to three epochs", lambda x: min(1.0, x / epochs))


def in_steps(dice: random.Random) -> Life:
    steps = dice.choice([2, 3, 4])
    return filling(dice, "fills in two to four steps", lambda x: min(steps, int(x)) / steps)


def ever_slower(dice: random.Random) -> Life:
    tau = dice.uniform(0.7, 6.0)
    return filling(dice, "fills ever slower", lambda x: 1.0 - math.exp(-x / tau))


def ever_smaller_steps(dice: random.Random) -> Life:
    left = dice.uniform(0.4, 0.75)
    return filling(dice, "fills in ever smaller steps", lambda x: 1.0 - left ** int(x))


def dies_away(dice: random.Random) -> Life:
    """An allocator that finds ever fewer new sizes."""
    fast = dice.uniform(1.0, 20.0)
    return filling(dice, "an allocator's growth that dies away", lambda x: math.log(1.0 + fast * x))


def least_recently_used(dice: random.Random) -> Life:
    """Evenly up to its size, which is less than half of the memory."""
    epochs = dice.uniform(2.0, 6.0)
    return filling(dice, "a bounded cache: fills evenly for up to six epochs", lambda x: min(1.0, x / epochs), most=0.4)


def steady(dice: random.Random) -> Life:
    return replace(any_life(dice, "nothing grows"), planned=1000)


CACHES: list[Kind] = [
    in_one_epoch,
    in_three_epochs,
    in_steps,
    ever_slower,
    ever_smaller_steps,
    dies_away,
    least_recently_used,
    steady,
]


@dataclass
class Reply:
    """What was said of one life that ends well."""

    life: Life
    forecasts: list[int]
    """Epochs in which there was a sure forecast before the planned end."""
    unsure: list[int]
    warned: list[str]


def listen(life: Life, epochs: float = 40.0) -> Reply:
    state = RunState()
    engine = Engine(state, [by_id()["memory-leak"]])
    said = Reply(life, [], [], [])
    for entry in entries(life.events(epochs)):
        for finding in engine.take(entry):
            state.fold(Entry(events.FindingMade(at=entry.event.at, finding=finding), 1))
            if finding.severity != "note":
                said.warned.append(finding.message)
        memory = state.attempts[-1].memory if state.attempts else None
        if memory is not None and isinstance(entry.event, events.Sample) and memory.is_analysis_due:
            forecast = memory_forecast(state)
            if forecast is not None and (forecast.at <= (life.planned or math.inf) * life.steps):
                (said.forecasts if forecast.sure else said.unsure).append(state.attempt.epoch or 0)
    return said


# --- fresh processes --------------------------------------------------------------------------------------------------


@dataclass
class ShortRunRequest:
    """When a planned restart was asked for."""

    part: float | None
    """Of the steps to the kill; None: it never was."""
    held: float = 0.0
    """Of the limit, in training."""


def asked(life: Life, epochs: float) -> ShortRunRequest:
    """Looked at with every third sample, to save time."""
    state = RunState()
    for entry in entries(life.events(epochs)):
        state.fold(entry)
        due = isinstance(entry.event, events.Sample) and state.attempt.memory.count % 3 == 0
        if due and find_restart_reason(state, PLAN) is not None:
            step = state.attempt.last_step
            return ShortRunRequest(step / (epochs * life.steps), life.trains_with(step / life.steps) / life.limit)
    return ShortRunRequest(None)


def restart_rows(lives: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    for place, (kind, _) in enumerate(LEAKS):
        dice = random.Random(seed * 100 + place)
        made = [replace(kind(dice), planned=1000) for _ in range(lives)]
        all_asked = [asked(life, (life.killed_at() or 0) / life.steps) for life in made]
        parts = [one.part for one in all_asked if one.part is not None]
        yield (
            [
                made[0].name,
                f"{len(parts)}/{lives}",
                f"{min(parts):.0%}",
                f"{median(parts):.0%}",
                f"{min(one.held for one in all_asked if one.part is not None):.0%}",
            ],
            len(parts) == lives,
        )
    for place, cache in enumerate(CACHES):
        dice = random.Random(seed * 100 + 50 + place)
        made = [cache(dice) for _ in range(lives)]
        spoke = sum(asked(life, 40.0).part is not None for life in made)
        yield [made[0].name, f"{spoke}/{lives}", "", "", ""], not spoke


# --- the table --------------------------------------------------------------------------------------------------------


def part(values: list[float], which: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(which * len(ordered)) - 1)]


def leak_rows(lives: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    for place, (kind, promised) in enumerate(LEAKS):
        dice = random.Random(seed * 100 + place)
        told = [foretell(kind(dice)) for _ in range(lives)]
        errors = [one.error for one in told]
        spoke = sum(one.forecast is not None for one in told)
        sure = sum(one.forecast is not None and one.forecast.sure for one in told)
        within = sum(error <= PROMISE for error in errors)
        kept = not promised or within == lives
        yield (
            [
                told[0].life.name,
                f"{spoke}/{lives}",
                f"{sure}",
                f"{median(errors):.1%}",
                f"{part(errors, 0.95):.1%}",
                f"{max(errors):.1%}",
                f"{within}/{lives}",
                f"{sum(one.covered for one in told)}/{lives}",
            ],
            kept,
        )


def cache_rows(lives: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    for place, kind in enumerate(CACHES):
        dice = random.Random(seed * 100 + 50 + place)
        heard = [listen(kind(dice)) for _ in range(lives)]
        false = sum(bool(said.forecasts) for said in heard)
        warned = sum(bool(said.warned) for said in heard)
        unsure = sum(bool(said.unsure) for said in heard)
        yield (
            [heard[0].life.name, f"{lives - false}/{lives}", f"{lives - warned}/{lives}", f"{unsure}"],
            not (false or warned),
        )


def show(title: list[str], rows: list[tuple[list[str], bool]]) -> bool:
    print("| " + " | ".join([*title, ""]) + " |")
    print("|---" * (len(title) + 1) + "|")
    for cells, kept in rows:
        print("| " + " | ".join([*cells, "kept" if kept else "NOT KEPT"]) + " |")
    print()
    return all(kept for _, kept in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promise is not kept")
    parser.add_argument("--lives", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    began = time.process_time()
    print(f"{options.lives} lives of each kind, seed {options.seed}\n")
    leaks = show(
        ["leak", "foretold", "surely", "median error", "95th percentile", "worst", "within 10%", "in the interval"],
        list(leak_rows(options.lives, options.seed)),
    )
    caches = show(
        ["fills and stops", "no sure forecast", "no warning", "with an unsure forecast"],
        list(cache_rows(max(1, options.lives // 2), options.seed)),
    )
    restarts = show(
        ["planned restarts", "asked for before the kill", "at the earliest", "median", "least held"],
        list(restart_rows(max(1, options.lives // 6), options.seed)),
    )
    print(f"{time.process_time() - began:.0f} s of processor time", file=sys.stderr)
    return 1 if options.check and not (leaks and caches and restarts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
