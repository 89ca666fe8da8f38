"""The order in which images are read. If time runs out, the images read so far are an even sample of all images."""

from __future__ import annotations

MAX_IN_ORDER = 20_000
"""Up to this number, images are read in the order on disk: that is faster, and there is time for all of them."""


def spread(count: int) -> list[int]:
    """Return a permutation of the indices in which every prefix is spread evenly over all of them."""
    if count <= MAX_IN_ORDER:
        return list(range(count))
    step = round(count * 0.6180339887)  # the golden ratio leaves no large gap, regardless of where it stops
    while _gcd(step, count) != 1:
        step += 1
    return [at * step % count for at in range(count)]


def _gcd(one: int, other: int) -> int:
    while other:
        one, other = other, one % other
    return one
