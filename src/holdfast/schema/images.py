"""The scan of a dataset: one small frozen record for each image and its label file."""

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
"""Why an image cannot be used for training. `refused`: permission denied; `too-small`: under 10 pixels, which
training skips; `too-many-pixels`: more than Pillow opens."""

Oddity = Literal["extension", "cmyk", "16-bit", "tail", "not-decoded", "not-scanned"]
"""`extension`: the file extension does not match the format; `tail`: a JPEG with data after its end marker;
`not-decoded`: so large that only the header was read; `not-scanned`: Pillow, or its plugin for the format, is not
installed."""

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
"""What is wrong with a line of a label file. `mixed`: boxes and polygons in one file; `outside`: outside the image by
more than training tolerates; `sticks-out`: only an edge is outside, which is clipped; `degenerate`: no area."""


class LineNote(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An example of a faulty line."""

    fault: LineFault
    line: int
    text: str


class Seen(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What the reader reports about one image."""

    index: int
    """Position of the image in the list that the reader was given."""
    width: int = 0
    """In pixels, after EXIF rotation. 0 if the image could not be read."""
    height: int = 0
    format: str = ""
    mode: str = ""
    problem: Problem | None = None
    detail: str = ""
    oddities: tuple[Oddity, ...] = ()
    digest: str = ""
    """Digest of the file's bytes."""
    image_hash: str = ""
    """Perceptual hash, 128 bits in hexadecimal: similar images have similar hashes. Empty for a single-colour image."""
    label: LabelState = "missing"
    faults: dict[LineFault, int] = {}
    notes: tuple[LineNote, ...] = ()
    classes: tuple[int, ...] = ()
    """Class of each readable object, in the order of the lines."""
    sizes: tuple[float, ...] = ()
    """Square root of each object's area, as a fraction of the image's longer side; empty if unknown.
    Multiplied by the training's image size, it is the object's size in pixels during training."""


class ImageRecord(msgspec.Struct, frozen=True, gc=False):
    path: str
    split: str
    seen: Seen


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The result of scanning a dataset."""

    root: str
    names: dict[int, str]
    """Class names, as far as the dataset provides them."""
    images: tuple[ImageRecord, ...]
    total: int
    """Number of images in the dataset; larger than the number scanned if time ran out."""
    stray_labels: int = 0
    """Number of label files without an image."""
    stray_examples: tuple[str, ...] = ()
    decoded: bool = True
    """False if Pillow is not installed: then only labels were read."""
    python: str = ""
    """The interpreter that read the images."""
    seconds: float = 0.0

    def split(self, *names: str) -> list[ImageRecord]:
        return [image for image in self.images if image.split in names]

    @property
    def complete(self) -> bool:
        return len(self.images) >= self.total
