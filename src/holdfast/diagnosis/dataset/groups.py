"""Which pictures belong together, so that none of them may be validated on while another is trained on.

Copies (the same bytes), near copies (the same look), copies by name and frames of one video are put together, and for every
picture that is held back from training it is said which one it is known by.
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
    from holdfast.schema.images import Picture, Survey

How = Literal["copy", "near", "source", "video", "chain"]
"""The same bytes; the same look; copies of one picture by their names; frames of one video; alike by way of others."""
HELD_BACK = ("val", "test")


@dataclass(frozen=True)
class Twin:
    """A picture of validation, and the one in training that it is known by."""

    held: int
    trained: int
    how: How


@dataclass(frozen=True)
class Groups:
    of: tuple[int, ...]
    """For each picture of the survey, the number of its group: that of its first picture."""
    twins: tuple[Twin, ...]
    videos: tuple[Video, ...]
    copies: int
    """Pictures of training that are there more than once, counted without the first."""
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
    pictures = survey.pictures
    joined = _Joined(len(pictures))
    known: dict[int, Twin] = {}
    copies = _alike_by(pictures, lambda picture: picture.seen.digest or None)
    for same in copies:
        joined.join_all(same)
        _know_all(same, pictures, "copy", known)
    by_look = _by_look(pictures)
    _join_looks(by_look, pictures, joined, known)
    sources = _alike_by(pictures, lambda picture: source_of(picture.path))
    for same in sources:
        joined.join_all(same)
        _know_all(same, pictures, "source", known)
    filmed = videos(pictures, survey.root)
    for video in filmed:
        joined.join_all(video.frames)
        _know_frames(video.frames, pictures, known)
    heads = tuple(joined.head(at) for at in range(len(pictures)))
    chains: dict[int, list[int]] = defaultdict(list)
    for at, head in enumerate(heads):
        chains[head].append(at)
    for members in chains.values():
        _know_all(members, pictures, "chain", known)
    return Groups(
        of=heads,
        twins=tuple(known[at] for at in sorted(known)),
        videos=tuple(filmed),
        copies=sum(_beyond_first(same, pictures) for same in copies),
        near_copies=sum(_beyond_first(same, pictures) for same in by_look.values()),
        contradicting=tuple(_contradictions(copies, pictures)),
    )


def _join_looks(
    by_look: dict[int, list[int]], pictures: Sequence[Picture], joined: _Joined, known: dict[int, Twin]
) -> None:
    for same in by_look.values():
        joined.join_all(same)
        _know_all(same, pictures, "near", known)
    trained = {look: _first_trained(same, pictures) for look, same in by_look.items()}
    unknown = {look: [at for at in same if _is_held(at, pictures, known)] for look, same in by_look.items()}
    for pair in near_pairs(by_look, near_enough([*by_look])):
        joined.join(by_look[pair[0]][0], by_look[pair[1]][0])
        for one, other in (pair, pair[::-1]):
            by = trained[one]
            if by is not None and unknown[other]:
                known.update((at, Twin(at, by, "near")) for at in unknown[other])
                unknown[other] = []


def _by_look(pictures: Sequence[Picture]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for at, picture in enumerate(pictures):
        if picture.seen.look:
            found[int(picture.seen.look, 16)].append(at)
    return found


def _alike_by(pictures: Sequence[Picture], key: Callable[[Picture], Hashable | None]) -> list[list[int]]:
    """Pictures that share something, where there are several."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for at, picture in enumerate(pictures):
        if (value := key(picture)) is not None:
            found[value].append(at)
    return [same for same in found.values() if len(same) > 1]


def _know_all(members: Sequence[int], pictures: Sequence[Picture], how: How, known: dict[int, Twin]) -> None:
    """Whatever is held back is known by what is trained on, if it is not known better already."""
    trained = _first_trained(members, pictures)
    if trained is not None:
        known.update((at, Twin(at, trained, how)) for at in members if _is_held(at, pictures, known))


def _know_frames(frames: Sequence[int], pictures: Sequence[Picture], known: dict[int, Twin]) -> None:
    """As `_know_all`, by the frame of training that is nearest in time."""
    nearest: dict[int, tuple[int, int]] = {}
    for direction in (1, -1):
        last: int | None = None
        for place, at in list(enumerate(frames))[::direction]:
            if pictures[at].split == "train":
                last = place
            elif last is not None:
                nearest[at] = min(nearest.get(at, (len(frames), 0)), (abs(place - last), last))
    known.update(
        (at, Twin(at, frames[place], "video")) for at, (_, place) in nearest.items() if _is_held(at, pictures, known)
    )


def _first_trained(members: Sequence[int], pictures: Sequence[Picture]) -> int | None:
    return next((at for at in members if pictures[at].split == "train"), None)


def _is_held(at: int, pictures: Sequence[Picture], known: dict[int, Twin]) -> bool:
    return pictures[at].split in HELD_BACK and at not in known


def _beyond_first(same: Sequence[int], pictures: Sequence[Picture]) -> int:
    return max(0, sum(pictures[at].split == "train" for at in same) - 1)


def _contradictions(copies: list[list[int]], pictures: Sequence[Picture]) -> list[tuple[int, int]]:
    """Copies of one picture, one of which has other labels than the first."""
    found = []
    for same in copies:
        first = pictures[same[0]].seen
        for at in same[1:]:
            other = pictures[at].seen
            if sorted(zip(first.classes, first.sizes, strict=False)) != sorted(
                zip(other.classes, other.sizes, strict=False)
            ):
                found.append((same[0], at))
                break
    return found
