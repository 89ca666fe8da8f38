"""In which order images are looked at: where time may run out, those that were looked at are spread over all of them."""

from __future__ import annotations

SPREAD_OVER = 20_000
"""Fewer images than this are looked at as they lie on the disk: that is faster, and there is time for all."""


def spread(count: int) -> list[int]:
    """The numbers from 0 on, each once, so that any beginning of the list is spread evenly over all."""
    if count <= SPREAD_OVER:
        return list(range(count))
    step = round(count * 0.6180339887)  # the golden section leaves no large gap, wherever it is stopped
    while _common(step, count) != 1:
        step += 1
    return [at * step % count for at in range(count)]


def _common(one: int, other: int) -> int:
    while other:
        one, other = other, one % other
    return one
