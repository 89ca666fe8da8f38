"""A small dataset for detection: yellow squares and blue circles on noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("square", "circle")
COLOURS = ((250, 220, 60), (60, 200, 250))
SIZE = 160
COUNTS = {"train": 48, "val": 16}


def make_shapes(folder: Path) -> Path:
    """Write images, labels and data.yaml. The result is the same each time."""
    random = np.random.default_rng(0)
    for split, count in COUNTS.items():
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(count):
            image, lines = _draw_image(random)
            image.save(images / f"{number:03d}.png")
            (labels / f"{number:03d}.txt").write_text("\n".join(lines) + "\n")
    data = folder / "data.yaml"
    names = ", ".join(f"{number}: {name}" for number, name in enumerate(NAMES))
    data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {{{names}}}\n")
    return data


def _draw_image(random: np.random.Generator) -> tuple[Image.Image, list[str]]:
    image = Image.fromarray(random.integers(0, 90, (SIZE, SIZE, 3), dtype=np.uint8))
    draw, lines = ImageDraw.Draw(image), []
    for _ in range(int(random.integers(1, 4))):
        width = int(random.integers(SIZE // 5, SIZE // 3))
        left, top = (int(place) for place in random.integers(0, SIZE - width, 2))
        kind = int(random.integers(0, 2))
        shape = draw.rectangle if kind == 0 else draw.ellipse
        shape((left, top, left + width, top + width), fill=COLOURS[kind])
        x, y = (left + width / 2) / SIZE, (top + width / 2) / SIZE
        lines.append(f"{kind} {x:.5f} {y:.5f} {width / SIZE:.5f} {width / SIZE:.5f}")
    return image, lines
