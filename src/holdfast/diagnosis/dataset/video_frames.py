"""Videos, found by the names of images: `video_3_frame_0012`, `clip7/000123`, `IMG_0001` from a burst.

A name alone does not show whether a number counts frames or something else. So a name is trusted if it states that the image
is from a video and there are several videos. Otherwise it is trusted only if images with neighbouring numbers look clearly
more alike than two random images: a relation within this dataset, not a fixed threshold.
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

GENERIC_FOLDERS = frozenset(
    {"images", "image", "imgs", "train", "training", "val", "valid", "validation", "test", "testing", "jpegimages"}
)
"""Folder names that contain no information about the source of an image."""
VIDEO_WORDS = frozenset({"video", "vid", "clip", "seq", "sequence", "shot", "scene", "movie", "mov"})
"""Words before the number of a video."""
_COPY = re.compile(r"[_.](?:jpe?g|png|bmp|webp|tiff?)\.rf\.[0-9A-Za-z]+$")
"""The suffix that Roboflow appends to each copy of an image."""
_LETTERS = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"(\d+)")
MAX_NUMBERS = 8
MIN_COUNT = 8
"""The minimum number of images with names of the same form, and of pairs of neighbours, for any conclusion."""
MAX_RELATIVE_DISTANCE = 0.6
"""The maximum distance of neighbours, as a fraction of the distance of random pairs."""
MIN_COLLISIONS = 0.2
"""As a fraction of the frames of a split: if this many also occur by name in the other split, each split was numbered
separately, and names are meaningless."""


class Video(NamedTuple):
    name: str
    frames: tuple[int, ...]
    """The indexes of the images, in the order of their numbers."""
    by: str
    """"name" or "appearance"."""


class _Name(NamedTuple):
    form: tuple[str, ...]
    numbers: tuple[str, ...]


def source_of(path: str) -> str | None:
    """Return the name of the image that this one is a copy of, if its own name shows it."""
    stem = path.rpartition("/")[2].rpartition(".")[0]
    cut = _COPY.search(stem)
    return stem[: cut.start()].lower() if cut else None


def find_videos(images: Sequence[ImageRecord], root: str) -> list[Video]:
    """Return all videos that were found. Each image belongs to at most one."""
    forms: dict[tuple[str, ...], list[tuple[int, _Name]]] = defaultdict(list)
    for at, image in enumerate(images):
        name = _parse_name(image.path, root)
        if name.numbers:
            forms[name.form].append((at, name))
    found: list[Video] = []
    for form, named in forms.items():
        if len(named) >= MIN_COUNT:
            found += _find_videos_of_form(form, named, images)
    return found


def _find_videos_of_form(
    form: tuple[str, ...], named: list[tuple[int, _Name]], images: Sequence[ImageRecord]
) -> list[Video]:
    video_slots = [slot for slot, before in enumerate(form[:-1]) if _is_video_number(before)]
    counting = _counting_slot([name for _, name in named], set(video_slots))
    by_number = _group_frames(named, video_slots, counting)
    by_name = len(by_number) > 1 and counting not in video_slots
    others = video_slots if by_name else [slot for slot in range(len(form) - 1) if slot != counting]
    by_video = by_number if by_name else _group_frames(named, others, counting)
    if _is_numbered_per_split(by_video, images):
        return []
    if by_name:
        return [
            Video(_format_title(form, video_slots, key), tuple(at for _, at in frames), "name")
            for key, frames in by_video.items()
            if len(frames) > 1
        ]
    return [
        Video(
            f"{_format_title(form, others, key)} from {images[scene[0]].path.rpartition('/')[2]}",
            tuple(scene),
            "appearance",
        )
        for key, scene in _find_scenes(by_video, images)
    ]


def _is_video_number(before: str) -> bool:
    """Return whether the number after this text is the number of a video."""
    words = _LETTERS.findall(before)
    return bool(words) and words[-1] in VIDEO_WORDS


def _group_frames(
    named: list[tuple[int, _Name]], slots: list[int], counting: int
) -> dict[tuple[str, ...], list[tuple[int, int]]]:
    """Group the frames by the numbers in these slots, each group in the order of its frame numbers."""
    found: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for at, name in named:
        found[tuple(name.numbers[slot] for slot in slots)].append((int(name.numbers[counting]), at))
    for frames in found.values():
        frames.sort()
    return found


def _find_scenes(
    by_video: dict[tuple[str, ...], list[tuple[int, int]]], images: Sequence[ImageRecord]
) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return runs of consecutive numbers that look alike; none if neighbours are no more alike than other pairs."""
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
    median_distance = median(
        distance(one, anywhere[(at * 7919 + half) % len(anywhere)]) for at, one in enumerate(anywhere)
    )
    median_step = median(steps)
    if median_step > MAX_RELATIVE_DISTANCE * median_distance:
        return []
    jump = (median_step + median_distance) / 2
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


def _parse_name(path: str, root: str) -> _Name:
    below = path.removeprefix(root.rstrip("/") + "/") if root else path
    *folders, file = below.split("/")
    stem = _COPY.sub("", file.rpartition(".")[0])
    kept = [folder for folder in folders[-3:] if folder.lower() not in GENERIC_FOLDERS]
    parts = _NUMBER.split("/".join([*kept, stem]).lower())
    numbers = tuple(part for part in parts[1::2])
    if len(numbers) > MAX_NUMBERS or any(len(number) > 18 for number in numbers):
        return _Name((), ())
    return _Name(tuple(parts[0::2]), numbers)


def _counting_slot(names: list[_Name], video_slots: set[int]) -> int:
    """Return the slot that counts frames: the one with the most values that is not a video number; of several, the last."""
    values = [len(set(column)) for column in zip(*(name.numbers for name in names), strict=True)]
    return max(range(len(values)), key=lambda slot: (slot not in video_slots, values[slot], slot))


def _is_numbered_per_split(
    by_video: dict[tuple[str, ...], list[tuple[int, int]]], images: Sequence[ImageRecord]
) -> bool:
    """Return whether frames with the same name but different content occur in two splits."""
    splits: dict[tuple[tuple[str, ...], int], dict[str, str]] = defaultdict(dict)
    for key, frames in by_video.items():
        for number, at in frames:
            if source_of(images[at].path) is None:
                splits[key, number][images[at].split] = images[at].seen.digest
    sizes = Counter(split for held in splits.values() for split in held)
    both = sum(len(held) > 1 and len(set(held.values())) > 1 for held in splits.values())
    return len(sizes) > 1 and both >= MIN_COLLISIONS * min(sizes.values())


def _format_title(form: tuple[str, ...], slots: list[int], key: tuple[str, ...]) -> str:
    """Return the common name of all frames of a video."""
    numbers = dict(zip(slots, key, strict=True))
    return "".join(part + numbers.get(slot, "*") for slot, part in enumerate(form[:-1])) + form[-1]
