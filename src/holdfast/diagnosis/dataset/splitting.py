"""A split of the same images in which no group is on both sides, near the old one's sizes and each class's share.

It is the same whenever it is made of the same images: no chance is in it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import class_name, many, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.dataset.groups import Groups
    from holdfast.schema.images import Survey

MIN_VALUE, MAX_VALUE = 0.1, 0.35
"""Shares of validation that are proposed; an old share outside of them is brought to the nearer one."""
PASSES = 12
SIZE_WEIGHT = 4.0
"""The number of images counts as much as so many classes."""


@dataclass(frozen=True)
class Split:
    train: tuple[str, ...]
    val: tuple[str, ...]
    groups: int
    val_groups: int
    pieces: int
    """Into which groups were cut that were too large for either side; 0 where none was."""
    shares: tuple[tuple[str, float, float], ...]
    """Each class: its share of all objects in the old validation, and in the new."""

    def told(self) -> str:
        said = (
            f"{len(self.train):,} images for train, {len(self.val):,} for val ({share(len(self.val), len(self.train) + len(self.val))}), "
            f"from {many(self.groups, 'group')}, {self.val_groups:,} of them in val and none on both sides"
        )
        if self.pieces:
            said += (
                f" (some were too large for one side and were cut into {self.pieces:,} pieces of consecutive frames: frames beside a cut "
                "still know each other)"
            )
        if self.shares:
            low = min(self.shares, key=lambda item: item[2])
            high = max(self.shares, key=lambda item: item[2])
            said += f"; of each class's objects {share(low[2], 1)} ({low[0]})" + (
                f" to {share(high[2], 1)} ({high[0]})" if high is not low else ""
            )
            said += " are in val"
        return said


@dataclass(frozen=True)
class _Unit:
    """Images that stay together, with what they hold."""

    members: tuple[int, ...]
    counts: dict[int, int]
    """Objects by class; -1 counts images."""


IMAGES = -1


def propose(survey: Survey, groups: Groups) -> Split | None:
    """None where there is nothing to split, or one group is all there is."""
    usable = _each_once(survey)
    old = {at for at in usable if survey.images[at].split == "val"}
    if len(usable) < 4:
        return None
    wanted = min(MAX_VALUE, max(MIN_VALUE, len(old) / len(usable)))
    units = _units(survey, groups, usable)
    count = len(units)
    held, pieces = _choose(units, wanted), 0
    if _size(units, held) < wanted * len(usable) / 3:
        longest = max(2, math.ceil(wanted * len(usable) / 2))
        cut = [piece for unit in units for piece in _cut(survey, groups, unit, longest)]
        pieces = len(cut) - len(units)
        if pieces:
            pieces += sum(len(unit.members) > longest for unit in units)
            units, held = cut, _choose(cut, wanted)
    if not held or len(held) == len(units):
        return None
    val = {at for number in held for at in units[number].members}
    return Split(
        train=tuple(sorted(survey.images[at].path for at in usable if at not in val)),
        val=tuple(sorted(survey.images[at].path for at in val)),
        groups=count if not pieces else len(units),
        val_groups=len(held),
        pieces=pieces,
        shares=_shares(survey, usable, old, val),
    )


def _each_once(survey: Survey) -> list[int]:
    """The images of train and val that can be read; one that is listed twice, once."""
    seen: set[str] = set()
    found = []
    for at, image in enumerate(survey.images):
        if image.split in ("train", "val") and image.seen.problem is None and image.path not in seen:
            seen.add(image.path)
            found.append(at)
    return found


def _units(survey: Survey, groups: Groups, usable: Sequence[int]) -> list[_Unit]:
    members: dict[int, list[int]] = defaultdict(list)
    for at in usable:
        members[groups.of[at]].append(at)
    units = [_unit(survey, sorted(group, key=lambda at: survey.images[at].path)) for group in members.values()]
    return sorted(units, key=lambda unit: (-len(unit.members), survey.images[unit.members[0]].path))


def _unit(survey: Survey, members: Sequence[int]) -> _Unit:
    counts = Counter(kind for at in members for kind in survey.images[at].seen.classes)
    counts[IMAGES] = len(members)
    return _Unit(tuple(members), dict(counts))


def _choose(units: Sequence[_Unit], wanted: float) -> set[int]:
    """Which units are validated on: one after the other, the largest first, then any change that brings it nearer."""
    totals: Counter[int] = Counter()
    for unit in units:
        totals.update(unit.counts)
    held: Counter[int] = Counter()
    chosen: set[int] = set()

    def gain(unit: _Unit, sign: int) -> float:
        """How much nearer the wanted shares come when this unit changes sides."""
        must_improve = 0.0
        for kind, count in unit.counts.items():
            weight = SIZE_WEIGHT if kind == IMAGES else 1.0
            now = held[kind] / totals[kind] - wanted
            then = (held[kind] + sign * count) / totals[kind] - wanted
            must_improve += weight * (now * now - then * then)
        return must_improve

    for _ in range(PASSES):
        changed = False
        for number, unit in enumerate(units):
            sign = -1 if number in chosen else 1
            if gain(unit, sign) > 1e-12:
                chosen ^= {number}
                for kind, count in unit.counts.items():
                    held[kind] += sign * count
                changed = True
        if not changed:
            break
    return chosen


def _size(units: Sequence[_Unit], held: set[int]) -> int:
    return sum(len(units[number].members) for number in held)


def _cut(survey: Survey, groups: Groups, unit: _Unit, longest: int) -> list[_Unit]:
    """A unit that is too long, in pieces of neighbouring frames."""
    if len(unit.members) <= longest:
        return [unit]
    place = {at: (video.name, frame) for video in groups.videos for frame, at in enumerate(video.frames)}
    if not any(at in place for at in unit.members):
        return [unit]  # they only look alike: there is no order in which neighbours could be kept together
    ordered = sorted(unit.members, key=lambda at: (place.get(at, ("", 0)), survey.images[at].path))
    count = math.ceil(len(ordered) / longest)
    cuts = [len(ordered) * part // count for part in range(count + 1)]
    return [_unit(survey, ordered[begin:end]) for begin, end in itertools.pairwise(cuts)]


def _shares(
    survey: Survey, usable: Sequence[int], old: set[int], new: set[int]
) -> tuple[tuple[str, float, float], ...]:
    every, before, after = Counter[int](), Counter[int](), Counter[int]()
    for at in usable:
        kinds = survey.images[at].seen.classes
        every.update(kinds)
        before.update(kinds if at in old else ())
        after.update(kinds if at in new else ())
    return tuple(
        (class_name(survey, kind), before[kind] / every[kind], after[kind] / every[kind]) for kind in sorted(every)
    )
