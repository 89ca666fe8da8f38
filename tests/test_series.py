"""Series: bounded in memory, exact in what they count."""

from __future__ import annotations

import math

from holdfast.judge.series import Series, fall


def test_memory_is_bounded_and_the_mean_exact():
    series = Series(most=64)
    for n in range(100_000):
        series.add(n, float(n % 10))
    assert len(series.points) <= 65
    assert series.count == 100_000
    assert series.zeros == 10_000
    total = sum(point.mean * point.n for point in series.points)
    assert math.isclose(total / series.count, 4.5)
    assert (min(p.low for p in series.points), max(p.high for p in series.points)) == (0.0, 9.0)


def test_values_that_are_not_finite_are_counted_apart():
    series = Series()
    for step, value in enumerate([1.0, math.nan, math.inf, 2.0, -math.inf], 1):
        series.add(step, value)
    assert (series.count, series.bad, series.first_bad_step, series.bad_in_a_row) == (2, 3, 2, 1)


def test_fall_is_measured_against_its_own_noise():
    down, flat, up = Series(), Series(), Series()
    for n in range(200):
        jitter = 0.3 * math.sin(n * 12.9898)
        down.add(n, 2.0 - 0.01 * n + jitter)
        flat.add(n, 2.0 + jitter)
        up.add(n, 2.0 + 0.01 * n + jitter)
    assert fall(down).beyond_noise
    assert not fall(flat).beyond_noise
    assert not fall(up).beyond_noise
    assert fall(Series()) is None


def test_fall_of_negative_losses():
    series = Series()
    for n in range(100):
        series.add(n, -0.1 * n)
    assert fall(series).beyond_noise
