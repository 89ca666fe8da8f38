"""A new split of the same images: no group is on both sides, and the sizes and the share of each class stay close to the old
split.

The result is deterministic: the same images always give the same split.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import class_name, format_count, format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.dataset.groups import Groups
    from holdfast.schema.images import Survey

MIN_SHARE, MAX_SHARE = 0.1, 0.35
"""Bounds for the share of validation. An old share outside of them is moved to the nearer bound."""
PASSES = 12
SIZE_WEIGHT = 4.0
"""The number of images counts as much as this many classes."""


@dataclass(frozen=True)
class Split:
    train: tuple[str, ...]
    val: tuple[str, ...]
    groups: int
    val_groups: int
    pieces: int
    """The number of pieces of groups that were too large for one side; 0 if no group was cut."""
    shares: tuple[tuple[str, float, float], ...]
    """For each class: the share of its objects in the old validation split, and in the new one."""

    def describe(self) -> str:
        text = (
            f"{len(self.train):,} images for train, {len(self.val):,} for val ({format_percent(len(self.val), len(self.train) + len(self.val))}), "
            f"in {format_count(self.groups, 'group')}, {self.val_groups:,} of them in val and none on both sides"
        )
        if self.pieces:
            text += (
                f" (some groups were too large for one side and were cut into {self.pieces:,} pieces of consecutive frames: frames "
                "next to a cut are still similar)"
            )
        if self.shares:
            low = min(self.shares, key=lambda item: item[2])
            high = max(self.shares, key=lambda item: item[2])
            to = f" to {format_percent(high[2], 1)} ({high[0]})" if high is not low else ""
            text += f"; val contains {format_percent(low[2], 1)} ({low[0]}){to} of the objects of each class"
        return text


@dataclass(frozen=True)
class _Unit:
    """Images that stay together, with their objects."""

    members: tuple[int, ...]
    counts: dict[int, int]
    """Number of objects by class; the key -1 counts images."""


IMAGES = -1


def propose_split(survey: Survey, groups: Groups) -> Split | None:
    """Propose a split; None if there is nothing to split, or only one group."""
    usable = _list_usable(survey)
    old = {at for at in usable if survey.images[at].split == "val"}
    if len(usable) < 4:
        return None
    target = min(MAX_SHARE, max(MIN_SHARE, len(old) / len(usable)))
    units = _make_units(survey, groups, usable)
    count = len(units)
    held, pieces = _choose(units, target), 0
    if sum(len(units[number].members) for number in held) < target * len(usable) / 3:
        max_length = max(2, math.ceil(target * len(usable) / 2))
        cut = [piece for unit in units for piece in _cut(survey, groups, unit, max_length)]
        pieces = len(cut) - len(units)
        if pieces:
            pieces += sum(len(unit.members) > max_length for unit in units)
            units, held = cut, _choose(cut, target)
    if not held or len(held) == len(units):
        return None
    val = {at for number in held for at in units[number].members}
    return Split(
        train=tuple(sorted(survey.images[at].path for at in usable if at not in val)),
        val=tuple(sorted(survey.images[at].path for at in val)),
        groups=count if not pieces else len(units),
        val_groups=len(held),
        pieces=pieces,
        shares=_compute_shares(survey, usable, old, val),
    )


def _list_usable(survey: Survey) -> list[int]:
    """Return the readable images of train and val, without repetitions."""
    places: dict[str, int] = {}
    for at, image in enumerate(survey.images):
        if image.split in ("train", "val") and image.seen.problem is None:
            places.setdefault(image.path, at)
    return list(places.values())


def _make_units(survey: Survey, groups: Groups, usable: Sequence[int]) -> list[_Unit]:
    members: dict[int, list[int]] = defaultdict(list)
    for at in usable:
        members[groups.of[at]].append(at)
    units = [_make_unit(survey, sorted(group, key=lambda at: survey.images[at].path)) for group in members.values()]
    return sorted(units, key=lambda unit: (-len(unit.members), survey.images[unit.members[0]].path))


def _make_unit(survey: Survey, members: Sequence[int]) -> _Unit:
    counts = Counter(kind for at in members for kind in survey.images[at].seen.classes)
    counts[IMAGES] = len(members)
    return _Unit(tuple(members), dict(counts))


def _choose(units: Sequence[_Unit], target: float) -> set[int]:
    """Choose the units for validation: the largest first, then every change that improves the result."""
    totals: Counter[int] = Counter()
    for unit in units:
        totals.update(unit.counts)
    held: Counter[int] = Counter()
    chosen: set[int] = set()

    def gain(unit: _Unit, sign: int) -> float:
        """Return how much closer the shares get to the target if this unit changes sides."""
        improvement = 0.0
        for kind, count in unit.counts.items():
            weight = SIZE_WEIGHT if kind == IMAGES else 1.0
            now = held[kind] / totals[kind] - target
            then = (held[kind] + sign * count) / totals[kind] - target
            improvement += weight * (now * now - then * then)
        return improvement

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


def _cut(survey: Survey, groups: Groups, unit: _Unit, max_length: int) -> list[_Unit]:
    """Cut a unit that is too long into pieces of neighbouring frames."""
    if len(unit.members) <= max_length:
        return [unit]
    place = {at: (video.name, frame) for video in groups.videos for frame, at in enumerate(video.frames)}
    if not any(at in place for at in unit.members):
        return [unit]  # the images only look alike: they have no order to keep neighbours together
    ordered = sorted(unit.members, key=lambda at: (place.get(at, ("", 0)), survey.images[at].path))
    count = math.ceil(len(ordered) / max_length)
    cuts = [len(ordered) * part // count for part in range(count + 1)]
    return [_make_unit(survey, ordered[begin:end]) for begin, end in itertools.pairwise(cuts)]


def _compute_shares(
    survey: Survey, usable: Sequence[int], old: set[int], new: set[int]
) -> tuple[tuple[str, float, float], ...]:
    total, before, after = Counter[int](), Counter[int](), Counter[int]()
    for at in usable:
        kinds = survey.images[at].seen.classes
        total.update(kinds)
        before.update(kinds if at in old else ())
        after.update(kinds if at in new else ())
    return tuple(
        (class_name(survey, kind), before[kind] / total[kind], after[kind] / total[kind]) for kind in sorted(total)
    )
