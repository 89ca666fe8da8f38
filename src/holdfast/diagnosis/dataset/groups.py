"""Which images belong together, so that none of them may be validated on while another is trained on.

Copies (the same bytes), near copies (the same look), copies by name and frames of one video are put together, and for every
image that is held back from training it is said which one it is known by.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.diagnosis.dataset.near_duplicates import near_enough, near_pairs
from holdfast.diagnosis.dataset.video_frames import source_of, videos

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from holdfast.diagnosis.dataset.video_frames import Video
    from holdfast.schema.images import ImageRecord, Survey

How = Literal["copy", "near", "source", "video", "chain"]
"""The same bytes; the same look; copies of one image by their names; frames of one video; alike by way of others."""
HELD_BACK = ("val", "test")


@dataclass(frozen=True)
class Twin:
    """An image of validation, and the one in training that it is known by."""

    held: int
    trained: int
    how: How


@dataclass(frozen=True)
class Groups:
    of: tuple[int, ...]
    """For each image of the survey, the number of its group: that of its first image."""
    twins: tuple[Twin, ...]
    videos: tuple[Video, ...]
    copies: int
    """Images of training that are there more than once, counted without the first."""
    near_copies: int
    contradicting: tuple[tuple[int, int], ...]
    """Copies, wherever they are, whose labels differ."""


class _Joined:
    """Sets that are joined two by two; each is named after its first member."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def head(self, at: int) -> int:
        while self._above[at] != at:
            self._above[at] = self._above[self._above[at]]
            at = self._above[at]
        return at

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.head(one), self.head(other)))
        self._above[second] = first

    def join_all(self, members: Iterable[int]) -> None:
        first: int | None = None
        for member in members:
            if first is not None:
                self.join(first, member)
            first = member if first is None else first


def grouped(survey: Survey) -> Groups:
    images = survey.images
    joined = _Joined(len(images))
    known: dict[int, Twin] = {}
    copies = _alike_by(images, lambda image: image.seen.digest or None)
    for same in copies:
        joined.join_all(same)
        _know_all(same, images, "copy", known)
    by_hash = _by_hash(images)
    _join_hashes(by_hash, images, joined, known)
    sources = _alike_by(images, lambda image: source_of(image.path))
    for same in sources:
        joined.join_all(same)
        _know_all(same, images, "source", known)
    filmed = videos(images, survey.root)
    for video in filmed:
        joined.join_all(video.frames)
        _know_frames(video.frames, images, known)
    heads = tuple(joined.head(at) for at in range(len(images)))
    chains: dict[int, list[int]] = defaultdict(list)
    for at, head in enumerate(heads):
        chains[head].append(at)
    for members in chains.values():
        _know_all(members, images, "chain", known)
    return Groups(
        of=heads,
        twins=tuple(known[at] for at in sorted(known)),
        videos=tuple(filmed),
        copies=sum(_beyond_first(same, images) for same in copies),
        near_copies=sum(_beyond_first(same, images) for same in by_hash.values()),
        contradicting=tuple(_contradictions(copies, images)),
    )


def _join_hashes(
    by_hash: dict[int, list[int]], images: Sequence[ImageRecord], joined: _Joined, known: dict[int, Twin]
) -> None:
    for same in by_hash.values():
        joined.join_all(same)
        _know_all(same, images, "near", known)
    trained = {image_hash: _first_trained(same, images) for image_hash, same in by_hash.items()}
    unknown = {image_hash: [at for at in same if _is_held(at, images, known)] for image_hash, same in by_hash.items()}
    for pair in near_pairs(by_hash, near_enough([*by_hash])):
        joined.join(by_hash[pair[0]][0], by_hash[pair[1]][0])
        for one, other in (pair, pair[::-1]):
            by = trained[one]
            if by is not None and unknown[other]:
                known.update((at, Twin(at, by, "near")) for at in unknown[other])
                unknown[other] = []


def _by_hash(images: Sequence[ImageRecord]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for at, image in enumerate(images):
        if image.seen.image_hash:
            found[int(image.seen.image_hash, 16)].append(at)
    return found


def _alike_by(images: Sequence[ImageRecord], key: Callable[[ImageRecord], Hashable | None]) -> list[list[int]]:
    """Images that share something, where there are several."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for at, image in enumerate(images):
        if (value := key(image)) is not None:
            found[value].append(at)
    return [same for same in found.values() if len(same) > 1]


def _know_all(members: Sequence[int], images: Sequence[ImageRecord], how: How, known: dict[int, Twin]) -> None:
    """Whatever is held back is known by what is trained on, if it is not known better already."""
    trained = _first_trained(members, images)
    if trained is not None:
        known.update((at, Twin(at, trained, how)) for at in members if _is_held(at, images, known))


def _know_frames(frames: Sequence[int], images: Sequence[ImageRecord], known: dict[int, Twin]) -> None:
    """As `_know_all`, by the frame of training that is nearest in time."""
    nearest: dict[int, tuple[int, int]] = {}
    for direction in (1, -1):
        last: int | None = None
        for place, at in list(enumerate(frames))[::direction]:
            if images[at].split == "train":
                last = place
            elif last is not None:
                nearest[at] = min(nearest.get(at, (len(frames), 0)), (abs(place - last), last))
    known.update(
        (at, Twin(at, frames[place], "video")) for at, (_, place) in nearest.items() if _is_held(at, images, known)
    )


def _first_trained(members: Sequence[int], images: Sequence[ImageRecord]) -> int | None:
    return next((at for at in members if images[at].split == "train"), None)


def _is_held(at: int, images: Sequence[ImageRecord], known: dict[int, Twin]) -> bool:
    return images[at].split in HELD_BACK and at not in known


def _beyond_first(same: Sequence[int], images: Sequence[ImageRecord]) -> int:
    return max(0, sum(images[at].split == "train" for at in same) - 1)


def _contradictions(copies: list[list[int]], images: Sequence[ImageRecord]) -> list[tuple[int, int]]:
    """Copies of one image, one of which has other labels than the first."""
    found = []
    for same in copies:
        first = images[same[0]].seen
        for at in same[1:]:
            other = images[at].seen
            if sorted(zip(first.classes, first.sizes, strict=False)) != sorted(
                zip(other.classes, other.sizes, strict=False)
            ):
                found.append((same[0], at))
                break
    return found
