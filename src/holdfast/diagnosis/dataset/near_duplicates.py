"""Which images look alike: pairs of 128-bit looks that differ in few bits, found without comparing all with all.

How few is asked of the data set itself. Of images that have nothing to do with each other about half of the bits differ, but
where all show a street under a sky it is far less: what counts as near is what two unrelated images of this data set would
hardly ever reach.

Two looks that differ in at most n bits differ in at most one bit in at least one of n / 2 + 1 parts. So each part is looked up as it is
and with each one of its bits changed, and only what is found there is compared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BITS = 128
SURE = 4
"""Bits in which an image that was only saved again may differ: near in any data set."""
MAX_DISTANCE = 20
"""Never more: a shift by a fortieth of the width, or another focus."""
MAX_DISTANCE_OF_MANY = 14
MANY = 30_000
"""Images, from which on the wider search would take minutes."""
UNLIKELY = 6.0
"""Standard deviations below the median distance: of a hundred million unrelated pairs hardly one is there."""
SAMPLED = 20_000
CROWD = 64
"""Looks with one part in common that each is compared with at most. Where more share it they look alike in long chains, which
are found all the same."""


def distance(one: int, other: int) -> int:
    return (one ^ other).bit_count()


def usual_distances(hashes: Sequence[int]) -> list[int]:
    """Those of pairs from all over the data set, in order. The same pairs every time."""
    count = len(hashes)
    steps = [step for step in (count // 2, count // 3, count // 5 + 1, count // 7 + 2) if step]
    rounds = max(1, count * len(steps) // SAMPLED)
    return sorted(
        distance(hashes[at], hashes[(at + step) % count])
        for step in steps
        for at in range(0, count, rounds)
        if step < count
    )


def near_enough(hashes: Sequence[int]) -> int:
    """In how many bits two images of this data set may differ and still be called near copies.

    The upper half of the usual distances gives the spread: the lower half holds the very pairs that are looked for.
    """
    usual = usual_distances(hashes)
    if len(usual) < 2 * BITS:
        return SURE * 2
    middle, high = usual[len(usual) // 2], usual[len(usual) * 84 // 100]
    most = MAX_DISTANCE if len(hashes) <= MANY else MAX_DISTANCE_OF_MANY
    return max(SURE, min(most, int(middle - UNLIKELY * (high - middle))))


def near_pairs(hashes: Iterable[int], within: int) -> Iterator[tuple[int, int]]:
    """Pairs of different looks that differ in so many bits at most; a pair may come more than once."""
    distinct = sorted(set(hashes))
    for shift, length in _parts(within // 2 + 1):
        mask = (1 << length) - 1
        changes = [0, *(1 << bit for bit in range(length))]
        met: dict[int, list[int]] = defaultdict(list)
        for one in distinct:
            part = one >> shift & mask
            for change in changes:
                for other in met.get(part ^ change, ())[-CROWD:]:
                    if (one ^ other).bit_count() <= within:
                        yield other, one
            met[part].append(one)


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """The bits cut into parts of nearly equal length: how far each is to the right, and its length."""
    for part in range(count):
        begin, end = BITS * part // count, BITS * (part + 1) // count
        yield begin, end - begin
