"""Videos, found in the names of images: `video_3_frame_0012`, `clip7/000123`, `IMG_0001` taken in one go.

A number that counts frames is not told from one that counts anything else by the name alone. So a name is believed where it
says that it is of a video and there are several, else only where images with neighbouring numbers look clearly more alike
than any two images do: a relation within this data set, not a limit from elsewhere.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.dataset.common import median
from holdfast.diagnosis.dataset.near_duplicates import distance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.schema.images import ImageRecord

GENERIC = frozenset(
    {"images", "image", "imgs", "train", "training", "val", "valid", "validation", "test", "testing", "jpegimages"}
)
"""Folders that say nothing about where an image comes from."""
SAYS_VIDEO = frozenset({"video", "vid", "clip", "seq", "sequence", "shot", "scene", "movie", "mov"})
"""Words before the number of a video."""
_COPY = re.compile(r"[_.](?:jpe?g|png|bmp|webp|tiff?)\.rf\.[0-9A-Za-z]+$")
"""What Roboflow appends to each of the copies that it makes of an image."""
_LETTERS = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"(\d+)")
MAX_NUMBERS = 8
MIN_COUNT = 8
"""Images with names of the same form, and pairs of neighbours, that are needed to conclude anything."""
ALIKE = 0.6
"""Neighbours must differ by this much of what any two images differ by, at most."""
COLLIDES = 0.2
"""Of the frames of a split, by name also in the other: then each split was numbered anew, and names say nothing."""


class Video(NamedTuple):
    name: str
    frames: tuple[int, ...]
    """Which images, in the order of their numbers."""
    by: str
    """"name" or "appearance"."""


class _Name(NamedTuple):
    form: tuple[str, ...]
    numbers: tuple[str, ...]


def source_of(path: str) -> str | None:
    """The image that this one is a copy of, where its name tells."""
    stem = path.rpartition("/")[2].rpartition(".")[0]
    cut = _COPY.search(stem)
    return stem[: cut.start()].lower() if cut else None


def videos(images: Sequence[ImageRecord], root: str) -> list[Video]:
    """All that are found; each image is in one at most."""
    forms: dict[tuple[str, ...], list[tuple[int, _Name]]] = defaultdict(list)
    for at, image in enumerate(images):
        name = _name(image.path, root)
        if name.numbers:
            forms[name.form].append((at, name))
    found: list[Video] = []
    for form, named in forms.items():
        if len(named) >= MIN_COUNT:
            found += _of_one_form(form, named, images)
    return found


def _of_one_form(form: tuple[str, ...], named: list[tuple[int, _Name]], images: Sequence[ImageRecord]) -> list[Video]:
    told = [slot for slot, before in enumerate(form[:-1]) if _says_video(before)]
    counting = _counting_slot([name for _, name in named], set(told))
    by_number = _by_video(named, told, counting)
    by_name = len(by_number) > 1 and counting not in told
    others = told if by_name else [slot for slot in range(len(form) - 1) if slot != counting]
    by_video = by_number if by_name else _by_video(named, others, counting)
    if _numbered_anew(by_video, images):
        return []
    if by_name:
        return [
            Video(_titled(form, told, key), tuple(at for _, at in frames), "name")
            for key, frames in by_video.items()
            if len(frames) > 1
        ]
    return [
        Video(
            f"{_titled(form, others, key)} from {images[scene[0]].path.rpartition('/')[2]}", tuple(scene), "appearance"
        )
        for key, scene in _scenes(by_video, images)
    ]


def _says_video(before: str) -> bool:
    """Whether the number after this text is that of a video."""
    words = _LETTERS.findall(before)
    return bool(words) and words[-1] in SAYS_VIDEO


def _by_video(
    named: list[tuple[int, _Name]], slots: list[int], counting: int
) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Frames in the order of their numbers, by what stands in these slots."""
    found: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for at, name in named:
        found[tuple(name.numbers[slot] for slot in slots)].append((int(name.numbers[counting]), at))
    for frames in found.values():
        frames.sort()
    return found


def _scenes(
    by_video: dict[tuple[str, ...], list[tuple[int, int]]], images: Sequence[ImageRecord]
) -> list[tuple[tuple[str, ...], list[int]]]:
    """Runs of neighbouring numbers that look alike; none where neighbours look no more alike than others."""
    hashes = {
        at: int(images[at].seen.image_hash, 16)
        for frames in by_video.values()
        for _, at in frames
        if images[at].seen.image_hash
    }
    runs = [(key, [at for _, at in frames if at in hashes]) for key, frames in by_video.items()]
    steps = [distance(hashes[one], hashes[other]) for _, run in runs for one, other in itertools.pairwise(run)]
    if len(steps) < MIN_COUNT:
        return []
    anywhere = list(hashes.values())
    half = len(anywhere) // 2
    usual = median(distance(one, anywhere[(at * 7919 + half) % len(anywhere)]) for at, one in enumerate(anywhere))
    near = median(steps)
    if near > ALIKE * usual:
        return []
    jump = (near + usual) / 2
    scenes: list[tuple[tuple[str, ...], list[int]]] = []
    for key, run in runs:
        scene: list[int] = []
        for at in run:
            if scene and distance(hashes[scene[-1]], hashes[at]) > jump:
                scenes.append((key, scene))
                scene = []
            scene.append(at)
        scenes.append((key, scene))
    return [(key, scene) for key, scene in scenes if len(scene) > 1]


def _name(path: str, root: str) -> _Name:
    below = path.removeprefix(root.rstrip("/") + "/") if root else path
    *folders, file = below.split("/")
    stem = _COPY.sub("", file.rpartition(".")[0])
    kept = [folder for folder in folders[-3:] if folder.lower() not in GENERIC]
    parts = _NUMBER.split("/".join([*kept, stem]).lower())
    numbers = tuple(part for part in parts[1::2])
    if len(numbers) > MAX_NUMBERS or any(len(number) > 18 for number in numbers):
        return _Name((), ())
    return _Name(tuple(parts[0::2]), numbers)


def _counting_slot(names: list[_Name], videos: set[int]) -> int:
    """Which of the numbers counts frames: the one with the most values, the last of several, that numbers no video."""
    values = [len(set(column)) for column in zip(*(name.numbers for name in names), strict=True)]
    return max(range(len(values)), key=lambda slot: (slot not in videos, values[slot], slot))


def _numbered_anew(by_video: dict[tuple[str, ...], list[tuple[int, int]]], images: Sequence[ImageRecord]) -> bool:
    """Whether frames of the same name but different content stand in two splits."""
    splits: dict[tuple[tuple[str, ...], int], dict[str, str]] = defaultdict(dict)
    for key, frames in by_video.items():
        for number, at in frames:
            if source_of(images[at].path) is None:
                splits[key, number][images[at].split] = images[at].seen.digest
    sizes = Counter(split for held in splits.values() for split in held)
    both = sum(len(held) > 1 and len(set(held.values())) > 1 for held in splits.values())
    return len(sizes) > 1 and both >= COLLIDES * min(sizes.values())


def _titled(form: tuple[str, ...], slots: list[int], key: tuple[str, ...]) -> str:
    """The name that all frames of a video share."""
    numbers = dict(zip(slots, key, strict=True))
    return "".join(part + numbers.get(slot, "*") for slot, part in enumerate(form[:-1])) + form[-1]
