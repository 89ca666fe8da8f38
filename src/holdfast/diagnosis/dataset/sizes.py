"""How large are objects, in pixels, once images are brought to the image size of the training?

Ultralytics scales an image by min(size / width, size / height). A YOLO's finest map has one cell for 8 x 8 of those pixels:
an object under 8 pixels is less than a cell, one under 16 hardly has a neighbourhood.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.dataset.common import Judged, class_name, many, median, share
from holdfast.diagnosis.dataset.labels import is_dropped
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import Survey

CELL = 8.0
CLEAR = 16.0
MANY = 0.25
"""Of the objects, or of those of one class."""
ENOUGH = 10
"""Objects of a class that must have been seen to speak of it."""
MAX_IMAGE = 1280
OVERLAP = 0.2
"""Of neighbouring tiles, so that an object at a cut is whole in one of them."""


class SizeStats(NamedTuple):
    """The sizes of some objects at an image size."""

    objects: int
    median: float
    under_cell: float
    """The share under 8 pixels."""
    under_clear: float
    """The share under 16."""


class Tiles(NamedTuple):
    side: int
    """In pixels of the image itself."""
    columns: int
    rows: int


def judge(survey: Survey, image_size: int, rule: str) -> Judged:
    by_class, images = _sizes(survey)
    if not by_class:
        return Judged("no object whose size is known")
    every = [size for sizes in by_class.values() for size in sizes]
    spread = at(every, image_size)
    message = (
        f"{many(spread.objects, 'object')} at imgsz {image_size}: median {spread.median:.0f} px, {share(spread.under_cell, 1)} "
        f"under {CELL:.0f} px, {share(spread.under_clear, 1)} under {CLEAR:.0f} px"
    )
    spreads = {kind: at(sizes, image_size) for kind, sizes in by_class.items() if len(sizes) >= ENOUGH}
    worst = max(spreads, key=lambda kind: (spreads[kind].under_clear, spreads[kind].under_cell), default=None)
    suffers = spreads[worst] if worst is not None else spread
    if max(spread.under_clear, suffers.under_clear) < MANY:
        return Judged(message)
    too_small = max(spread.under_cell, suffers.under_cell) >= MANY
    sizes, of = every, ""
    if worst is not None and suffers.under_clear > spread.under_clear:
        sizes, of = by_class[worst], f" of {class_name(survey, worst)}"
    evidence = [message]
    if worst is not None and len(spreads) > 1:
        evidence.append(
            f"{class_name(survey, worst)} suffers most: {many(suffers.objects, 'object')}, median {suffers.median:.0f} px, "
            f"{share(suffers.under_cell, 1)} under {CELL:.0f} px, {share(suffers.under_clear, 1)} under {CLEAR:.0f} px"
        )
    here = at(sizes, image_size)
    return Judged(
        message,
        (
            Finding(
                rule=rule,
                severity="warn" if too_small else "note",
                message=f"At imgsz {image_size} {share(here.under_clear, 1)} of the objects{of} are under {CLEAR:.0f} pixels and "
                f"{share(here.under_cell, 1)} under {CELL:.0f}, less than one cell of the finest map: "
                f"{'most of these will not be learned' if too_small else 'they are hard to learn'}.",
                evidence=evidence,
                remedies=_remedies(median(sizes), image_size, images, f"an object{of}"),
            ),
        ),
    )


def at(sizes: list[float], image_size: int) -> SizeStats:
    return SizeStats(
        len(sizes),
        median(sizes) * image_size,
        sum(size * image_size < CELL for size in sizes) / len(sizes),
        sum(size * image_size < CLEAR for size in sizes) / len(sizes),
    )


def needed_image_size(middle: float) -> int:
    """The smallest multiple of 32 at which an object of this share of the longer side has 16 pixels."""
    return math.ceil(CLEAR / middle / 32) * 32


def tiles(middle: float, image_size: int, width: int, height: int) -> Tiles:
    """Squares of the image, each brought to `image_size`, in which such an object has 16 pixels."""
    side = max(32, int(middle * max(width, height) * image_size / CLEAR) // 32 * 32)
    step = side * (1 - OVERLAP)
    return Tiles(side, *(max(1, math.ceil((length - side) / step) + 1) for length in (width, height)))


def _remedies(middle: float, image_size: int, images: list[tuple[int, int]], whose: str) -> list[str]:
    width, height = median(width for width, _ in images), median(height for _, height in images)
    own = middle * max(width, height)
    if middle * image_size >= CLEAR:
        smaller = f"the median is {middle * image_size:.0f} px and fine: the smaller ones gain from a larger imgsz"
        return [
            f"{smaller}, for instance {_half_more(image_size)} (about {(_half_more(image_size) / image_size) ** 2:.1f} times the memory and time)"
        ]
    needed = needed_image_size(middle)
    said = []
    if needed <= MAX_IMAGE:
        said.append(
            f"imgsz={needed}: {whose} then has {middle * needed:.0f} px in the median (about "
            f"{(needed / image_size) ** 2:.1f} times the memory and time; smaller batches keep memory as it is)"
        )
    else:
        cut = tiles(middle, image_size, int(width), int(height))
        said.append(
            f"imgsz would have to be {needed}: cut the images instead. Tiles of {cut.side} x {cut.side} px at imgsz "
            f"{image_size}, {cut.columns} x {cut.rows} = {cut.columns * cut.rows} for an image of {width:.0f} x {height:.0f}, "
            f"overlapping by {share(OVERLAP, 1)}, show {whose} with {own * image_size / cut.side:.0f} px (train on tiles, and "
            "predict on tiles as well, for instance with SAHI)"
        )
    if own < CLEAR:
        said.append(
            f"in the images themselves {whose} has only {own:.0f} px: enlarging helps the finest map, but shows no more detail; "
            "images of higher resolution would"
        )
    if image_size > max(width, height):
        said.append(f"the images are smaller ({width:.0f} x {height:.0f}) than imgsz {image_size} already")
    return said


def _half_more(image_size: int) -> int:
    return math.ceil(image_size * 1.5 / 32) * 32


def _sizes(survey: Survey) -> tuple[dict[int, list[float]], list[tuple[int, int]]]:
    """The sizes by class of all splits, and the width and height of the images that they are on."""
    by_class: dict[int, list[float]] = defaultdict(list)
    images = []
    for image in survey.images:
        seen = image.seen
        if seen.problem is None and seen.sizes and not is_dropped(image):
            images.append((seen.width, seen.height))
            for kind, size in zip(seen.classes, seen.sizes, strict=True):
                by_class[kind].append(size)
    return by_class, images
