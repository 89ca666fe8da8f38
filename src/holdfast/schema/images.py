"""What was seen of a YOLO data set: one small frozen fact for each image and its label file."""

from __future__ import annotations

from typing import Literal

import msgspec

Problem = Literal[
    "missing",
    "refused",
    "not-a-file",
    "empty",
    "not-an-image",
    "truncated",
    "broken",
    "too-small",
    "too-many-pixels",
    "reader-died",
    "too-slow",
]
"""Why an image cannot be trained on. `refused`: the system does not let it be read; `too-small`: under 10 pixels, which
Ultralytics leaves out; `too-many-pixels`: beyond what Pillow, and so Ultralytics, opens at all."""

Oddity = Literal["extension", "cmyk", "16-bit", "tail", "not-decoded", "not-scanned"]
"""`extension`: of another format than its name says; `tail`: a JPEG that goes on after its end mark; `not-decoded`: so large that only
the header was read; `not-scanned`: there was no Pillow, or no plugin for the format."""

LabelState = Literal["there", "empty", "missing", "unreadable", "too-large"]

LineFault = Literal[
    "unparsable",
    "columns",
    "mixed",
    "class-range",
    "class-fraction",
    "outside",
    "sticks-out",
    "degenerate",
    "duplicate",
]
"""What is wrong with a line of labels. `mixed`: boxes and polygons in one file; `outside`: beyond the image by more than
Ultralytics forgives; `sticks-out`: only an edge is beyond it, which is clipped; `degenerate`: no area."""


class LineNote(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One faulty line, as an example."""

    fault: LineFault
    line: int
    text: str


class Seen(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What the reader says of one image, told apart by its number in the list that it was given."""

    index: int
    width: int = 0
    """In pixels, as it is shown: turned where its EXIF says so. 0 where nothing could be read."""
    height: int = 0
    format: str = ""
    mode: str = ""
    problem: Problem | None = None
    detail: str = ""
    oddities: tuple[Oddity, ...] = ()
    digest: str = ""
    """Of the file's bytes."""
    image_hash: str = ""
    """128 bits in hexadecimal that change little when the image changes little; empty where it is all of one colour."""
    label: LabelState = "missing"
    faults: dict[LineFault, int] = {}
    notes: tuple[LineNote, ...] = ()
    classes: tuple[int, ...] = ()
    """Of each object that could be read, in the order of the lines."""
    sizes: tuple[float, ...] = ()
    """The side of a square of each object's area, as a share of the image's longer side; empty where that is unknown.
    Times the image size of a training that is its size in pixels there."""


class ImageRecord(msgspec.Struct, frozen=True, gc=False):
    """One image of a data set."""

    path: str
    split: str
    seen: Seen


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen of a data set."""

    root: str
    names: dict[int, str]
    """The classes, as far as the data set names them."""
    images: tuple[ImageRecord, ...]
    total: int
    """Images that there are; more than were looked at where time ran out."""
    stray_labels: int = 0
    """Label files to which no image belongs."""
    stray_examples: tuple[str, ...] = ()
    decoded: bool = True
    """False where there was no Pillow: then only labels were looked at."""
    python: str = ""
    """The interpreter that read the images."""
    seconds: float = 0.0

    def split(self, *names: str) -> list[ImageRecord]:
        return [image for image in self.images if image.split in names]

    @property
    def complete(self) -> bool:
        return len(self.images) >= self.total
