"""Time of the data checks, compared with Ultralytics' own scan of the same images. See README.md.

python bench/data_check/run.py [--images N] [--rounds N] [--check] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path

SIZE = (640, 480)
LIMIT_S = 60.0
"""For 10,000 images on two cores."""


def make_images(folder: Path, count: int) -> dict[str, list[str]]:
    """Create JPEGs of noise and shapes, with labels. Existing files are reused."""
    paths: dict[str, list[str]] = {"train": [], "val": []}
    for at in range(count):
        split = "val" if at % 5 == 0 else "train"
        paths[split].append(str(folder / "images" / split / f"{at:06}.jpg"))
    for split in paths:
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
    absent = [path for split in paths.values() for path in split if not Path(path).exists()]
    if absent:
        print(f"making {len(absent):,} images in {folder} ...", flush=True)
        with ProcessPoolExecutor() as pool:
            list(pool.map(draw_image, absent, chunksize=100))
    return paths


def draw_image(path: str) -> None:
    import numpy as np
    from PIL import Image, ImageDraw

    rng = random.Random(path)
    noise = np.random.default_rng(rng.randrange(1 << 30)).integers(
        0, 60, (SIZE[1] // 2, SIZE[0] // 2, 3), dtype=np.uint8
    )
    image = Image.fromarray(noise).resize(SIZE, Image.Resampling.BILINEAR)
    drawing = ImageDraw.Draw(image)
    lines = []
    for _ in range(rng.randint(3, 15)):
        w, h = rng.randint(8, 200), rng.randint(8, 200)
        x, y = rng.randint(0, SIZE[0] - w), rng.randint(0, SIZE[1] - h)
        colour = tuple(rng.randint(60, 255) for _ in range(3))
        (drawing.ellipse if rng.random() < 0.5 else drawing.rectangle)((x, y, x + w, y + h), fill=colour)
        centre = ((x + w / 2) / SIZE[0], (y + h / 2) / SIZE[1])
        lines.append(f"{rng.randint(0, 2)} {centre[0]:.6f} {centre[1]:.6f} {w / SIZE[0]:.6f} {h / SIZE[1]:.6f}\n")
    label = Path(path.replace(f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}")).with_suffix(".txt")
    label.write_text("".join(lines))
    image.save(path, quality=85)


def measure_holdfast(folder: Path, paths: dict[str, list[str]]) -> tuple[float, float]:
    """Return the seconds for scanning all images and for judging the result."""
    from holdfast.diagnosis.dataset import classes, labels, leakage, readable, sizes
    from holdfast.frameworks.ultralytics.image_survey import survey

    began = time.perf_counter()
    seen = survey(str(folder), dict(enumerate("abc")), paths, sys.executable, classes=3)
    scanned = time.perf_counter()
    assert seen.complete
    assert not readable.judge(seen, "").findings
    labels.judge(seen, "")
    classes.judge(seen, "")
    sizes.judge(seen, 640, "")
    leakage.judge(seen, "", always_split=True)
    return scanned - began, time.perf_counter() - scanned


def measure_ultralytics(paths: dict[str, list[str]]) -> float:
    """Return the seconds of Ultralytics' scan for its label cache, with its own number of threads."""
    from ultralytics.data.utils import img2label_paths, verify_image_label
    from ultralytics.utils import NUM_THREADS

    listed = [path for split in paths.values() for path in split]
    began = time.perf_counter()
    with ThreadPool(NUM_THREADS) as pool:
        work = (
            (path, label, "", False, 3, 0, 0, False)
            for path, label in zip(listed, img2label_paths(listed), strict=True)
        )
        found = sum(answer[6] for answer in pool.imap(verify_image_label, work))
    assert found == len(listed)
    return time.perf_counter() - began


def measure_decoding(paths: dict[str, list[str]]) -> float:
    """Return the seconds for a full decode of all images with OpenCV in threads, which every epoch does at least."""
    import cv2

    cv2.setNumThreads(1)
    listed = [path for split in paths.values() for path in split]
    began = time.perf_counter()
    with ThreadPool(os.cpu_count()) as pool:
        assert all(pool.imap(lambda path: cv2.imread(path) is not None, listed, chunksize=50))
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "holdfast-bench-images")
    parser.add_argument("--check", action="store_true", help="exit with 1 if 10,000 images take more than a minute")
    options = parser.parse_args()
    paths = make_images(options.folder, options.images)
    measure_ultralytics(paths)  # fill the file cache, because the first read is from the disk
    scanned, judged, theirs, decoded = [], [], [], []
    for number in range(options.rounds):
        scan_s, judge_s = measure_holdfast(options.folder, paths)
        scanned.append(scan_s)
        judged.append(judge_s)
        theirs.append(measure_ultralytics(paths))
        decoded.append(measure_decoding(paths))
        print(
            f"round {number + 1}: scanning {scan_s:.1f} s, judging {judge_s:.1f} s; Ultralytics' scan {theirs[-1]:.1f} s, cv2.imread {decoded[-1]:.1f} s",
            flush=True,
        )
    whole = statistics.median(a + b for a, b in zip(scanned, judged, strict=True))
    ratio = statistics.median((a + b) / c for a, b, c in zip(scanned, judged, theirs, strict=True))
    size = sum(Path(path).stat().st_size for split in paths.values() for path in split) / options.images
    allowed = LIMIT_S * options.images / 10_000
    print(
        f"{options.images:,} JPEGs of {SIZE[0]} x {SIZE[1]}, {size / 1000:.0f} kB each, on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"holdfast     {whole:6.1f} s  {options.images / whole:7,.0f} images/s, decoded, hashed, compared with each other"
    )
    print(
        f"ultralytics  {statistics.median(theirs):6.1f} s  {options.images / statistics.median(theirs):7,.0f} images/s, headers only"
    )
    print(
        f"cv2.imread   {statistics.median(decoded):6.1f} s  {options.images / statistics.median(decoded):7,.0f} images/s, decoded only"
    )
    to_decoding = statistics.median((a + b) / c for a, b, c in zip(scanned, judged, decoded, strict=True))
    print(
        f"ratio to Ultralytics' scan {ratio:.2f}, to decoding {to_decoding:.2f}; limit {allowed:.0f} s: {'met' if whole <= allowed else 'not met'}"
    )
    return 1 if options.check and whole > allowed else 0


if __name__ == "__main__":
    sys.exit(main())
