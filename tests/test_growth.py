"""The forecast tells a growth that will end a training from all that goes up for a while and stops."""

from __future__ import annotations

import math
import random

import pytest

from holdfast.diagnosis.aggregators.memory import MAX_POINTS, Memory
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.growth import Growth, forecast_crossing, growth
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.run_state import RunState
from holdfast.schema import events
from holdfast.testing.histories import entries
from holdfast.testing.resources import memory_history

MIB = 1 << 20
GIB = 1 << 30


def series(shape, n=400, noise=0.0, seed=0, step=10):
    """Points of `shape(part)`, where part goes from 0 to 1 over the whole of it."""
    dice = random.Random(seed)
    return [(float(i * step), shape(i / (n - 1)) + dice.gauss(0.0, noise)) for i in range(n)]


def linear(part):
    return 2 * GIB + 3 * GIB * part


@pytest.mark.parametrize("n", [20, 50, 400, 1024])
@pytest.mark.parametrize("noise", [0.0, 20 * MIB, 60 * MIB])
@pytest.mark.parametrize("seed", range(5))
def test_linear_leak_is_found_and_its_rate_is_right(n, noise, seed):
    points = series(linear, n=n, noise=noise, seed=seed)
    found = growth(points)
    if noise > 20 * MIB and n <= 50:
        # Few and noisy points may not be enough; what is said about them must be right all the same.
        assert found is None or found.slowest < 3 * GIB / points[-1][0] < found.fastest * 1.1
        return
    assert found is not None
    assert found.rate == pytest.approx(3 * GIB / points[-1][0], rel=0.1)
    assert found.level == pytest.approx(5 * GIB, rel=0.02)


def test_limit_is_met_where_the_line_meets_it():
    """From 2 GiB at the start by 3 GiB for each 3,990 steps: 8 GiB are reached at step 7,980."""
    found = growth(series(linear, noise=30 * MIB))
    forecast = forecast_crossing(found, 8 * GIB)
    assert forecast.earliest <= 7980 <= forecast.latest
    assert forecast.at == pytest.approx(7980, rel=0.05)
    assert forecast.latest - forecast.earliest < 0.4 * (7980 - 3990)


def test_interval_narrows_as_the_limit_comes_near():
    """The fourth field report: 16 GB, killed near epoch 94 of 100. Each later look is surer, and none is wrong."""
    widths = []
    for epochs in (20, 40, 60, 80):
        dice = random.Random(epochs)
        points = [
            (epochs * i / 600, 3 * GIB + 13 * GIB / 94 * epochs * i / 600 + dice.gauss(0, 80 * MIB)) for i in range(600)
        ]
        forecast = forecast_crossing(growth(points), 16 * GIB)
        assert forecast.earliest <= 94.0 <= forecast.latest, epochs
        widths.append(forecast.latest - forecast.earliest)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 8


def test_leak_after_a_warm_up_is_found():
    """Caches fill within the first fifth, then it grows on slowly: the forecast is made from the slow part."""
    found = growth(series(lambda part: 3 * GIB * min(1.0, part / 0.2) + GIB * part, noise=10 * MIB))
    assert found.rate == pytest.approx(GIB / 3990, rel=0.1)


def test_leak_that_starts_late_is_found():
    """Nothing for three quarters of the time, then a steady growth."""
    found = growth(series(lambda part: 2 * GIB + 8 * GIB * max(0.0, part - 0.75), noise=5 * MIB, n=800))
    assert found.rate == pytest.approx(8 * GIB / 7990, rel=0.15)
    assert found.since >= 0.6 * 7990


def test_growth_at_each_epoch_is_a_leak():
    """A staircase with a step for each of ten epochs: what leaks is the validation."""
    found = growth(series(lambda part: 2 * GIB + 200 * MIB * math.floor(part * 10), noise=2 * MIB))
    assert found.grown == pytest.approx(200 * MIB * 10 * 2 / 3, rel=0.3)


def test_leak_under_a_saw_tooth_is_found():
    """A collector takes back most of it, not all."""
    found = growth(series(lambda part: 2 * GIB + 3 * GIB * part + 200 * MIB * (part * 40 % 1.0), noise=5 * MIB))
    assert found.rate == pytest.approx(3 * GIB / 3990, rel=0.1)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("shape", "noise"),
    [
        pytest.param(lambda _part: 2 * GIB, 50 * MIB, id="noise around a constant"),
        pytest.param(lambda _part: 2 * GIB, 0, id="a constant"),
        pytest.param(lambda part: 2 * GIB - GIB * part, 10 * MIB, id="falling"),
        pytest.param(lambda part: GIB * math.log(1 + 50 * part), 10 * MIB, id="logarithmic growth"),
        pytest.param(lambda part: 4 * GIB * min(1.0, part / 0.3), 10 * MIB, id="a cache that filled and stopped early"),
        pytest.param(lambda part: 4 * GIB * min(1.0, part / 0.7), 10 * MIB, id="a cache that filled and stopped late"),
        pytest.param(lambda part: 4 * GIB * min(1.0, part / 0.9), 10 * MIB, id="a cache that has just stopped"),
        pytest.param(lambda part: 4 * GIB * (1 - math.exp(-4 * part)), 10 * MIB, id="a cache that fills ever slower"),
        pytest.param(lambda part: 2 * GIB + GIB * (part * 3 % 1.0), 10 * MIB, id="three teeth of a saw"),
        pytest.param(lambda part: 2 * GIB + GIB * (part * 3.6 % 1.0), 10 * MIB, id="three teeth and a half"),
        pytest.param(lambda part: 2 * GIB + GIB * (part * 20 % 1.0), 10 * MIB, id="twenty teeth of a saw"),
        pytest.param(lambda part: 2 * GIB + GIB * (part > 0.5), 10 * MIB, id="one step"),
        pytest.param(lambda part: 2 * GIB + GIB * (part > 0.9), 10 * MIB, id="one step at the end"),
        pytest.param(lambda part: 2 * GIB + GIB * ((part > 0.5) + (part > 0.8)), 10 * MIB, id="two steps"),
        pytest.param(lambda part: 2 * GIB + GIB * (0.8 < part < 0.85), 10 * MIB, id="a spike"),
        pytest.param(lambda part: 2 * GIB + GIB * math.sin(9 * part), 10 * MIB, id="up and down"),
    ],
)
def test_what_is_no_leak_is_left_alone(shape, noise, seed):
    points = series(shape, noise=noise, seed=seed)
    assert growth(points) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("shape", "noise"),
    [
        pytest.param(lambda _part: 2 * GIB, 50 * MIB, id="noise around a constant"),
        pytest.param(lambda part: GIB * math.log(1 + 400 * part), 10 * MIB, id="logarithmic growth"),
        pytest.param(lambda part: 2 * GIB + GIB * (part * 40 % 1.0), 10 * MIB, id="forty teeth of a saw"),
        pytest.param(lambda part: 2 * GIB + GIB * (part > 0.5), 10 * MIB, id="one step"),
        pytest.param(lambda part: 2 * GIB + GIB * ((part > 0.3) + (part > 0.8)), 10 * MIB, id="two steps"),
    ],
)
def test_what_is_no_leak_is_left_alone_at_every_moment(shape, noise, seed):
    """A rule asks again and again: one wrong answer in a long life is a false alarm."""
    points = series(shape, noise=noise, seed=seed)
    assert [n for n in range(60, 401, 7) if growth(points[:n]) is not None] == []


@pytest.mark.parametrize("seed", range(3))
def test_cache_that_fills_by_chance_is_left_alone_once_it_slows(seed):
    """A cache of what random batches bring fills by 1 - e^-t, t in epochs: from the fourth epoch on that shows."""
    for epochs in (4, 6, 9):
        points = series(lambda part, e=epochs: 4 * GIB * (1 - math.exp(-e * part)), noise=5 * MIB, seed=seed)
        assert growth(points) is None, epochs


def test_nothing_is_said_of_a_few_points():
    assert growth([]) is None
    assert growth([(0.0, 1.0)]) is None
    assert growth(series(linear, n=12)) is None


def test_evaluation_between_steps_is_one_point():
    """No step is done while it evaluates: a hundred samples at the same step count once."""
    points = []
    for x, y in series(linear, n=100, noise=5 * MIB):
        points += [(x, y)] * (100 if x % 200 == 0 else 1)
    assert growth(points).rate == pytest.approx(3 * GIB / 990, rel=0.1)


def test_steps_that_stand_still_give_no_slope():
    assert growth([(5.0, i * 1e9) for i in range(100)]) is None


def of(*, level=2.0, rate=1.0, slowing=1.0):
    return Growth(since=0.0, until=10.0, rate=rate, slowest=rate, fastest=rate, level=level, noise=0.0, slowing=slowing)


def test_growth_that_slows_down_may_never_meet_the_limit():
    """Halves of 5.5 and 4.5: what is left to come is a row of ever smaller halves."""
    slowing = of(slowing=4.5 / 5.5)
    assert slowing.settles_at == pytest.approx(2.0 + 4.5 * 4.5 / 5.5 / (1 - 4.5 / 5.5))
    assert forecast_crossing(slowing, 1.01 * slowing.settles_at) is None
    assert forecast_crossing(slowing, 0.9 * slowing.settles_at) is not None
    assert forecast_crossing(of(), 1e12) is not None


def test_limit_that_is_passed_is_met_now():
    assert forecast_crossing(of(level=9.0), 8.0) == (10.0, 10.0, 10.0)


def said(rule, history):
    """All that a rule said, with the epoch in which it said it."""
    state = RunState()
    engine = Engine(state, [by_id()[rule]])
    found = [(finding, state.attempt.epoch) for entry in entries(history) for finding in engine.take(entry)]
    return [(finding.severity, epoch or 0, finding.message) for finding, epoch in found]


def test_fourth_field_report_is_told_days_ahead():
    """70 hours and 94 epochs on 16 GB until it was killed: from a tenth of the way on the forecast is right."""
    dice = random.Random(4)
    history = memory_history(
        samples=94 * 40,
        every=67.0,
        steps=10,
        epoch_of=400,
        planned=100,
        rss=lambda part: 2.5 + 11.5 * part + dice.gauss(0.0, 0.05),
    )
    warned = [(epoch, message) for severity, epoch, message in said("memory-leak", history) if severity == "warn"]
    assert 4 <= warned[0][0] <= 15
    near = [int(message.split("near epoch ")[1].split()[0]) for epoch, message in warned if epoch >= 15]
    assert near
    assert all(85 <= epoch <= 103 for epoch in near)
    late = [message for epoch, message in warned if epoch >= 80]
    assert all(" of 100" in message for message in late)


def test_days_of_samples_stay_small():
    """Neighbours are joined: the detail is even, the totals are kept."""
    memory = Memory()
    for i in range(126_000):
        memory.fold_sample(
            events.Sample(at=2.0 * i, rss=i, processes=1, available=1, swap=0, disk_free=1), step=i, epoch=None
        )
    assert MAX_POINTS / 2 <= len(memory.points) <= MAX_POINTS
    assert sum(point.n for point in memory.points) == memory.count == 126_000
    assert memory.points[-1].peak == 125_999
    assert [point.rss for point in memory.points] == sorted(point.rss for point in memory.points)


def test_samples_belong_to_the_evaluation_in_whose_time_they_fall():
    """An evaluation is known only when it ends; what was measured meanwhile is its own, all else is training's."""
    memory = Memory()
    for i in range(100):
        evaluating = 60 <= i <= 90
        memory.fold_sample(
            events.Sample(at=float(i), rss=9 if evaluating else 2, processes=1, available=5, swap=0, disk_free=1),
            step=i,
        )
        if i == 90:
            memory.fold_evaluation(events.Evaluation(at=90.5, step=60, seconds=31.0, fetches=8))
    assert [(one.during.rss, one.training.rss) for one in memory.evaluations] == [(9, 2)]
