"""Training images for YOLO with one square each. They are written once and used by all contenders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 96


def make_images(folder: Path, training: int, validation: int) -> Path:
    """Create the images and labels. Return the path of data.yaml."""
    random = np.random.default_rng(0)
    for part, count in (("train", training), ("val", validation)):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for number in range(count):
            image = random.integers(0, 80, (SIDE, SIDE, 3), dtype=np.uint8)
            side = int(random.integers(24, 48))
            x, y = random.integers(2, SIDE - side - 2, 2)
            image[y : y + side, x : x + side] = 255
            Image.fromarray(image).save(folder / "images" / part / f"{number}.png")
            label = f"0 {(x + side / 2) / SIDE} {(y + side / 2) / SIDE} {side / SIDE} {side / SIDE}\n"
            (folder / "labels" / part / f"{number}.txt").write_text(label)
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {{0: square}}\n")
    return data
