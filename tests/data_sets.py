"""Small YOLO datasets for tests: images that can be told apart, videos, labels; and surveys of them without any file."""

from __future__ import annotations

import math
import random

from PIL import Image

from holdfast.schema.images import ImageRecord, Seen, Survey

BOX = "0 0.5 0.5 0.25 0.25\n"


def drawn(seed, size=(160, 120), shift=0.0):
    """Blobs of light at places that follow from the seed; `shift` moves the camera by that share of the width."""
    chance = random.Random(seed)
    small = Image.new("L", (64, 48))
    blobs = [
        (chance.uniform(-20, 84), chance.uniform(0, 48), chance.uniform(4, 12), chance.randint(60, 255))
        for _ in range(14)
    ]
    small.putdata(
        [
            min(
                255,
                int(
                    sum(
                        v * math.exp(-((x - shift * 64 - bx) ** 2 + (y - by) ** 2) / (2 * r * r))
                        for bx, by, r, v in blobs
                    )
                ),
            )
            for y in range(48)
            for x in range(64)
        ]
    )
    return small.resize(size, Image.BILINEAR).convert("RGB")


def save(root, split, name, image, label=BOX, **options):
    """An image and its labels; no label file where `label` is None."""
    path = root / "images" / split / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    write_label(root, split, name, label)
    return path


def write_label(root, split, name, label):
    if label is not None:
        path = root / "labels" / split / (name.rpartition(".")[0] + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(label)


def described(root, names=("thing",)):
    path = root / "data.yaml"
    path.write_text(f"train: images/train\nval: images/val\nnames: [{', '.join(names)}]\n")
    return path


def look(seed, flipped=0):
    """A look of 128 bits that follows from the seed, with that many of its bits changed."""
    chance = random.Random(seed)
    bits = chance.getrandbits(128)
    for bit in chance.sample(range(128), flipped):
        bits ^= 1 << bit
    return f"{bits:032x}"


def image(name, split="train", *, seed=None, flipped=0, classes=(0,), size=0.1, **seen):
    """An image as a survey tells of it. The same seed is the same look."""
    own = name if seed is None else seed
    facts = {
        "index": 0,
        "width": 640,
        "height": 480,
        "format": "JPEG",
        "digest": f"{split}/{name}",
        "image_hash": look(own, flipped),
        "label": "there" if classes else "empty",
        "classes": tuple(classes),
        "sizes": (size,) * len(classes),
        **seen,
    }
    return ImageRecord(f"/data/images/{split}/{name}", split, Seen(**facts))


def surveyed(*images, names=("thing",), **more):
    facts = {"root": "/data", "names": dict(enumerate(names)), "images": images, "total": len(images), **more}
    return Survey(**facts)
