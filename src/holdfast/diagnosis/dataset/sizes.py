"""How large are objects, in pixels, after images are scaled to the image size of the training?

Training scales an image by min(size / width, size / height). The finest feature map of a detector has one cell for 8 x 8
of those pixels: an object under 8 pixels is smaller than a cell, and one under 16 hardly has neighbouring cells.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.dataset.common import CheckResult, class_name, format_count, format_percent, make_result, median
from holdfast.diagnosis.dataset.labels import is_dropped
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import Survey

CELL = 8.0
CLEAR = 16.0
MAX_SMALL = 0.25
"""As a fraction of all objects, or of those of one class."""
MIN_OBJECTS = 10
"""The number of objects that a class must have to be considered alone."""
MAX_IMAGE = 1280
OVERLAP = 0.2
"""The overlap of neighbouring tiles, so that an object at a cut is complete in one of them."""


class SizeStats(NamedTuple):
    """The sizes of some objects at an image size."""

    objects: int
    median: float
    under_cell: float
    """The share under 8 pixels."""
    under_clear: float
    """The share under 16."""

    def describe(self) -> str:
        cell, clear = format_percent(self.under_cell, 1), format_percent(self.under_clear, 1)
        return f"median {self.median:.0f} px, {cell} under {CELL:.0f} px, {clear} under {CLEAR:.0f} px"


class Tiles(NamedTuple):
    side: int
    """In pixels of the original image."""
    columns: int
    rows: int


def judge(survey: Survey, image_size: int, rule: str) -> CheckResult:
    by_class, images = _collect_sizes(survey)
    if not by_class:
        return CheckResult("no objects with a known size")
    every = [size for sizes in by_class.values() for size in sizes]
    stats = measure(every, image_size)
    message = f"{format_count(stats.objects, 'object')} at imgsz {image_size}: {stats.describe()}"
    stats_by_class = {kind: measure(sizes, image_size) for kind, sizes in by_class.items() if len(sizes) >= MIN_OBJECTS}
    worst, worst_stats = max(
        stats_by_class.items(), key=lambda item: (item[1].under_clear, item[1].under_cell), default=(None, stats)
    )
    if max(stats.under_clear, worst_stats.under_clear) < MAX_SMALL:
        return CheckResult(message)
    too_small = max(stats.under_cell, worst_stats.under_cell) >= MAX_SMALL
    sizes, here, of = every, stats, ""
    evidence = [message]
    if worst is not None:
        name = class_name(survey, worst)
        if worst_stats.under_clear > stats.under_clear:
            sizes, here, of = by_class[worst], worst_stats, f" of {name}"
        if len(stats_by_class) > 1:
            objects = format_count(worst_stats.objects, "object")
            evidence.append(f"{name} is affected most: {objects}, {worst_stats.describe()}")
    found = Finding(
        severity="warn" if too_small else "note",
        message=f"At imgsz {image_size}, {format_percent(here.under_clear, 1)} of the objects{of} are under {CLEAR:.0f} pixels, and "
        f"{format_percent(here.under_cell, 1)} are under {CELL:.0f}, less than one cell of the finest feature map: "
        f"{'most of these will not be learned' if too_small else 'they are hard to learn'}.",
        evidence=evidence,
        remedies=_suggest(median(sizes), image_size, images, f"an object{of}"),
    )
    return make_result(rule, message, found)


def measure(sizes: list[float], image_size: int) -> SizeStats:
    return SizeStats(
        len(sizes),
        median(sizes) * image_size,
        sum(size * image_size < CELL for size in sizes) / len(sizes),
        sum(size * image_size < CLEAR for size in sizes) / len(sizes),
    )


def needed_image_size(median_size: float) -> int:
    """Return the smallest multiple of 32 at which an object of this size, as a fraction of the longer side, has 16 pixels."""
    return math.ceil(CLEAR / median_size / 32) * 32


def tiles(median_size: float, image_size: int, width: int, height: int) -> Tiles:
    """Return square tiles of the image in which such an object has 16 pixels when each tile is scaled to `image_size`."""
    side = max(32, int(median_size * max(width, height) * image_size / CLEAR) // 32 * 32)
    step = side * (1 - OVERLAP)
    return Tiles(side, *(max(1, math.ceil((length - side) / step) + 1) for length in (width, height)))


def _suggest(median_size: float, image_size: int, images: list[tuple[int, int]], what: str) -> list[str]:
    width, height = median(width for width, _ in images), median(height for _, height in images)
    pixels = median_size * max(width, height)
    if median_size * image_size >= CLEAR:
        larger = math.ceil(image_size * 1.5 / 32) * 32
        fine = f"the median of {median_size * image_size:.0f} px is fine; smaller objects benefit from a larger imgsz"
        return [f"{fine}, for example {larger} (about {(larger / image_size) ** 2:.1f} times the memory and time)"]
    needed = needed_image_size(median_size)
    remedies = []
    if needed <= MAX_IMAGE:
        remedies.append(
            f"use imgsz={needed}: the median size of {what} is then {median_size * needed:.0f} px (about "
            f"{(needed / image_size) ** 2:.1f} times the memory and time; smaller batches keep the memory the same)"
        )
    else:
        cut = tiles(median_size, image_size, int(width), int(height))
        remedies.append(
            f"cut the images into tiles, because imgsz would have to be {needed}. With tiles of {cut.side} x {cut.side} px at imgsz "
            f"{image_size}, {cut.columns} x {cut.rows} = {cut.columns * cut.rows} for an image of {width:.0f} x {height:.0f}, "
            f"overlapping by {format_percent(OVERLAP, 1)}, {what} has {pixels * image_size / cut.side:.0f} px (train and predict on tiles, "
            "for example with SAHI)"
        )
    if pixels < CLEAR:
        remedies.append(
            f"use images of higher resolution: in the original images, {what} has only {pixels:.0f} px. "
            "Enlarging them helps the finest feature map, but adds no detail"
        )
    if image_size > max(width, height):
        remedies.append(
            f"note that the images ({width:.0f} x {height:.0f}) are already smaller than imgsz {image_size}"
        )
    return remedies


def _collect_sizes(survey: Survey) -> tuple[dict[int, list[float]], list[tuple[int, int]]]:
    """Return the object sizes by class over all splits, and the widths and heights of the images with objects."""
    by_class: dict[int, list[float]] = defaultdict(list)
    images = []
    for image in survey.images:
        seen = image.seen
        if seen.problem is None and seen.sizes and not is_dropped(image):
            images.append((seen.width, seen.height))
            for kind, size in zip(seen.classes, seen.sizes, strict=True):
                by_class[kind].append(size)
    return by_class, images
