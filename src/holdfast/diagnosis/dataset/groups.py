"""Groups of images that belong together: none of them may be in validation while another is in training.

A group contains copies (the same bytes), near copies (the same appearance), copies by name, and frames of one video. For
every validation or test image that is known from training, the matching training image is recorded.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from holdfast.diagnosis.dataset.near_duplicates import find_near_pairs, find_threshold
from holdfast.diagnosis.dataset.video_frames import find_videos, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.diagnosis.dataset.video_frames import Video
    from holdfast.schema.images import ImageRecord, Survey

Key = TypeVar("Key")
How = Literal["copy", "near", "source", "video", "chain"]
"""The same bytes; the same appearance; copies of one image by their names; frames of one video; similar through others."""
HELD_BACK = ("val", "test")


@dataclass(frozen=True)
class Twin:
    """A validation or test image, and the training image that matches it."""

    held: int
    trained: int
    how: How


@dataclass(frozen=True)
class Groups:
    of: tuple[int, ...]
    """For each image of the survey, the number of its group, which is the index of the first image in it."""
    twins: tuple[Twin, ...]
    videos: tuple[Video, ...]
    copies: int
    """The number of extra copies of training images, without the first of each."""
    near_copies: int
    contradicting: tuple[tuple[int, int], ...]
    """Copies with different labels, in any split."""


class _DisjointSets:
    """Disjoint sets (union-find). Each set is identified by its first member."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, at: int) -> int:
        while self._parent[at] != at:
            self._parent[at] = self._parent[self._parent[at]]
            at = self._parent[at]
        return at

    def union(self, one: int, other: int) -> None:
        first, second = sorted((self.find(one), self.find(other)))
        self._parent[second] = first

    def union_all(self, members: Sequence[int]) -> None:
        for one, other in itertools.pairwise(members):
            self.union(one, other)


def group_images(survey: Survey) -> Groups:
    images = survey.images
    sets = _DisjointSets(len(images))
    twins: dict[int, Twin] = {}
    copies = _group_by(images, lambda image: image.seen.digest or None)
    for same in copies:
        sets.union_all(same)
        _add_twins(same, images, "copy", twins)
    by_hash = _index_by(images, lambda image: int(image.seen.image_hash, 16) if image.seen.image_hash else None)
    _join_near_copies(by_hash, images, sets, twins)
    sources = _group_by(images, lambda image: source_of(image.path))
    for same in sources:
        sets.union_all(same)
        _add_twins(same, images, "source", twins)
    found_videos = find_videos(images, survey.root)
    for video in found_videos:
        sets.union_all(video.frames)
        _add_frame_twins(video.frames, images, twins)
    roots = tuple(sets.find(at) for at in range(len(images)))
    chains: dict[int, list[int]] = defaultdict(list)
    for at, root in enumerate(roots):
        chains[root].append(at)
    for members in chains.values():
        _add_twins(members, images, "chain", twins)
    return Groups(
        of=roots,
        twins=tuple(twins[at] for at in sorted(twins)),
        videos=tuple(found_videos),
        copies=sum(_count_extra_copies(same, images) for same in copies),
        near_copies=sum(_count_extra_copies(same, images) for same in by_hash.values()),
        contradicting=tuple(_find_contradictions(copies, images)),
    )


def _join_near_copies(
    by_hash: dict[int, list[int]], images: Sequence[ImageRecord], sets: _DisjointSets, twins: dict[int, Twin]
) -> None:
    for same in by_hash.values():
        sets.union_all(same)
        _add_twins(same, images, "near", twins)
    trained = {image_hash: _find_first_trained(same, images) for image_hash, same in by_hash.items()}
    unknown = {
        image_hash: [at for at in same if _needs_twin(at, images, twins)] for image_hash, same in by_hash.items()
    }
    for pair in find_near_pairs(by_hash, find_threshold([*by_hash])):
        sets.union(by_hash[pair[0]][0], by_hash[pair[1]][0])
        for one, other in (pair, pair[::-1]):
            by = trained[one]
            if by is not None and unknown[other]:
                twins.update((at, Twin(at, by, "near")) for at in unknown[other])
                unknown[other] = []


def _index_by(images: Sequence[ImageRecord], key: Callable[[ImageRecord], Key | None]) -> dict[Key, list[int]]:
    """Return key -> images. None is not a key."""
    found: dict[Key, list[int]] = defaultdict(list)
    for at, image in enumerate(images):
        if (value := key(image)) is not None:
            found[value].append(at)
    return found


def _group_by(images: Sequence[ImageRecord], key: Callable[[ImageRecord], str | None]) -> list[list[int]]:
    """Return the groups of two or more images with the same key."""
    return [same for same in _index_by(images, key).values() if len(same) > 1]


def _add_twins(members: Sequence[int], images: Sequence[ImageRecord], how: How, twins: dict[int, Twin]) -> None:
    """Match the validation and test images of a group with its first training image, unless they already have a match."""
    trained = _find_first_trained(members, images)
    if trained is not None:
        twins.update((at, Twin(at, trained, how)) for at in members if _needs_twin(at, images, twins))


def _add_frame_twins(frames: Sequence[int], images: Sequence[ImageRecord], twins: dict[int, Twin]) -> None:
    """Like `_add_twins`, with the training frame that is nearest in time."""
    nearest: dict[int, tuple[int, int]] = {}
    for direction in (1, -1):
        last: int | None = None
        for place, at in list(enumerate(frames))[::direction]:
            if images[at].split == "train":
                last = place
            elif last is not None:
                nearest[at] = min(nearest.get(at, (len(frames), 0)), (abs(place - last), last))
    twins.update(
        (at, Twin(at, frames[place], "video")) for at, (_, place) in nearest.items() if _needs_twin(at, images, twins)
    )


def _find_first_trained(members: Sequence[int], images: Sequence[ImageRecord]) -> int | None:
    return next((at for at in members if images[at].split == "train"), None)


def _needs_twin(at: int, images: Sequence[ImageRecord], twins: dict[int, Twin]) -> bool:
    return images[at].split in HELD_BACK and at not in twins


def _count_extra_copies(same: Sequence[int], images: Sequence[ImageRecord]) -> int:
    return max(0, sum(images[at].split == "train" for at in same) - 1)


def _find_contradictions(copies: list[list[int]], images: Sequence[ImageRecord]) -> list[tuple[int, int]]:
    """Return pairs of copies of one image whose labels differ."""

    def labels(at: int) -> list[tuple[int, float]]:
        return sorted(zip(images[at].seen.classes, images[at].seen.sizes, strict=False))

    found = []
    for first, *others in copies:
        differs = next((at for at in others if labels(at) != labels(first)), None)
        if differs is not None:
            found.append((first, differs))
    return found
