"""Images that look alike: pairs of 128-bit image hashes that differ in few bits, found without comparing all pairs.

The threshold depends on the dataset. In the hashes of unrelated images, about half of the bits differ, but far fewer if all
images show a street under a sky. Two images count as near copies if their distance is one that unrelated images of this data
set would hardly ever reach.

If two hashes differ in at most n bits, they differ in at most one bit in at least one of n / 2 + 1 parts. So each part is
looked up as it is and with each of its bits flipped, and only the hashes found this way are compared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BITS = 128
ALWAYS_NEAR = 4
"""Bits that may differ if an image was only re-encoded: this counts as near in any dataset."""
MAX_DISTANCE = 20
"""The upper bound of the threshold: a shift by a fortieth of the width, or a different focus."""
MAX_DISTANCE_OF_MANY = 14
LARGE_DATA_SET = 30_000
"""Number of images above which the wider search would take minutes."""
MIN_DEVIATIONS = 6.0
"""Standard deviations below the median distance: hardly one of a hundred million unrelated pairs is that close."""
MAX_SAMPLED = 20_000
MAX_CANDIDATES = 64
"""The maximum number of hashes with a part in common that each hash is compared with. If more share a part, they form long
chains of similar images, which are found anyway."""


def distance(one: int, other: int) -> int:
    return (one ^ other).bit_count()


def sample_distances(hashes: Sequence[int]) -> list[int]:
    """Return the sorted distances of pairs from the whole dataset. The choice of pairs is deterministic."""
    count = len(hashes)
    steps = [step for step in (count // 2, count // 3, count // 5 + 1, count // 7 + 2) if step]
    rounds = max(1, count * len(steps) // MAX_SAMPLED)
    return sorted(
        distance(hashes[at], hashes[(at + step) % count])
        for step in steps
        for at in range(0, count, rounds)
        if step < count
    )


def find_threshold(hashes: Sequence[int]) -> int:
    """Return the number of bits in which two images of this dataset may differ and still count as near copies.

    The spread is estimated from the upper half of the distances, because the lower half contains the near copies themselves.
    """
    distances = sample_distances(hashes)
    if len(distances) < 2 * BITS:
        return ALWAYS_NEAR * 2
    median, high = distances[len(distances) // 2], distances[len(distances) * 84 // 100]
    most = MAX_DISTANCE if len(hashes) <= LARGE_DATA_SET else MAX_DISTANCE_OF_MANY
    return max(ALWAYS_NEAR, min(most, int(median - MIN_DEVIATIONS * (high - median))))


def find_near_pairs(hashes: Iterable[int], within: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of different hashes that differ in at most `within` bits. A pair may be yielded more than once."""
    distinct = sorted(set(hashes))
    for shift, length in _split_bits(within // 2 + 1):
        mask = (1 << length) - 1
        changes = [0, *(1 << bit for bit in range(length))]
        seen: dict[int, list[int]] = defaultdict(list)
        for one in distinct:
            part = one >> shift & mask
            for change in changes:
                for other in seen.get(part ^ change, ())[-MAX_CANDIDATES:]:
                    if (one ^ other).bit_count() <= within:
                        yield other, one
            seen[part].append(one)


def _split_bits(count: int) -> Iterator[tuple[int, int]]:
    """Split the bits into parts of nearly equal length. Yield the shift and the length of each."""
    for part in range(count):
        begin, end = BITS * part // count, BITS * (part + 1) // count
        yield begin, end - begin
