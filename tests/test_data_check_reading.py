"""Images and labels as they are read: what is wrong with a file is told, and no file harms the reading."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
from data_sets import BOX, drawn, save, write_label
from PIL import Image

from holdfast.diagnosis.dataset.labels import is_dropped
from holdfast.frameworks.ultralytics.image_survey import survey
from holdfast.preflight.images import readers
from holdfast.preflight.images.order import MAX_IN_ORDER, spread

NO_UTF8 = os.fsdecode(b"caf\xe9.jpg")


def read(root, splits=None, python=sys.executable, **more):
    if splits is None:
        splits = {
            split.name: [str(path) for path in sorted(split.rglob("*"))]
            for split in sorted((root / "images").iterdir())
        }
    return survey(str(root), {0: "thing"}, splits, python, classes=1, readers=2, **more)


def cut(root, name, keep, **options):
    path = save(root, "train", name, drawn(1, (640, 480)), **options)
    path.write_bytes(path.read_bytes()[:keep])


def png_header(width, height):
    """A PNG that says it is this large, and has nothing to show for it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """One look at a folder in which every image has something of its own, by name."""
    root = tmp_path_factory.mktemp("images")
    folder = root / "images" / "train"
    save(root, "train", "good.jpg", drawn(1))
    save(root, "train", "again.jpg", drawn(1), quality=40)
    save(root, "train", "larger.png", drawn(1, (320, 240)))
    save(root, "train", "other.jpg", drawn(2))
    save(root, "train", "black.jpg", Image.new("RGB", (64, 64)))
    (folder / "copy.jpg").write_bytes((folder / "good.jpg").read_bytes())
    cut(root, "half.jpg", 4000)
    cut(root, "half progressive.jpg", 4000, progressive=True)
    cut(root, "half.png", 4000)
    cut(root, "half.bmp", 4000)
    cut(root, "half.tif", 4000)
    cut(root, "half.webp", 1000)
    cut(root, "no end.jpg", -2)
    cut(root, "no end.png", -2)
    (folder / "more.png").write_bytes((folder / "larger.png").read_bytes() + b"\0\0\0")
    (folder / "more.jpg").write_bytes((folder / "good.jpg").read_bytes() + b"\0\0\0")
    save(root, "train", "tiny.png", Image.new("RGB", (5, 50)))
    save(root, "train", "cmyk.jpg", drawn(3).convert("CMYK"))
    save(root, "train", "deep.png", Image.new("I;16", (40, 40), 3000))
    save(root, "train", "named png.jpg", drawn(4), format="PNG")
    turned = Image.Exif()
    turned[274] = 6
    save(root, "train", "turned.jpg", drawn(5), exif=turned)
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("<html>not found</html>")
    (folder / "script.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\nshowpage\n")
    (folder / "bomb.png").write_bytes(png_header(60_000, 60_000))
    (folder / "large.png").write_bytes(png_header(12_000, 12_000))
    os.mkfifo(folder / "pipe.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "folder.jpg").mkdir()
    (folder / "two\nlines.jpg").write_bytes((folder / "other.jpg").read_bytes())
    with contextlib.suppress(OSError):  # macOS takes no such name
        (folder / NO_UTF8).write_bytes((folder / "other.jpg").read_bytes())
    paths = [str(path) for path in sorted(folder.iterdir())]
    found = read(root, {"train": [*paths, str(folder / "gone.jpg")]})
    return {Path(image.path).name: image.seen for image in found.images}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("good.jpg", None),
        ("half.jpg", "truncated"),
        ("half progressive.jpg", "truncated"),
        ("half.png", "truncated"),
        ("no end.jpg", "truncated"),
        ("no end.png", "truncated"),
        ("more.png", None),
        ("half.bmp", "truncated"),
        ("half.tif", "truncated"),
        ("half.webp", "broken"),
        ("tiny.png", "too-small"),
        ("empty.jpg", "empty"),
        ("text.jpg", "not-an-image"),
        ("script.jpg", "not-an-image"),
        ("bomb.png", "too-many-pixels"),
        ("pipe.jpg", "not-a-file"),
        ("folder.jpg", "not-a-file"),
        ("loop.jpg", "refused"),
        ("gone.jpg", "missing"),
        ("two\nlines.jpg", None),
    ],
)
def test_what_is_wrong_with_a_image(seen, name, problem):
    assert seen[name].problem == problem, seen[name]


@pytest.mark.parametrize(
    ("name", "oddity"),
    [
        ("more.jpg", "tail"),
        ("cmyk.jpg", "cmyk"),
        ("deep.png", "16-bit"),
        ("named png.jpg", "extension"),
        ("large.png", "not-decoded"),
    ],
)
def test_what_is_unusual_about_a_image(seen, name, oddity):
    assert seen[name].problem is None
    assert oddity in seen[name].oddities


def test_a_image_is_measured_as_it_is_shown(seen):
    assert (seen["good.jpg"].width, seen["good.jpg"].height) == (160, 120)
    assert (seen["turned.jpg"].width, seen["turned.jpg"].height) == (120, 160)


def test_the_look_stays_when_a_image_is_saved_again_and_not_otherwise(seen):
    def apart(one, other):
        return (int(seen[one].image_hash, 16) ^ int(seen[other].image_hash, 16)).bit_count()

    assert apart("good.jpg", "again.jpg") <= 4
    assert apart("good.jpg", "larger.png") <= 4
    assert apart("good.jpg", "other.jpg") > 30
    assert seen["black.jpg"].image_hash == ""
    assert seen["copy.jpg"].digest == seen["good.jpg"].digest != seen["again.jpg"].digest


def test_a_name_that_is_no_utf_8_is_read_as_well(seen):
    if NO_UTF8 not in seen:
        pytest.skip("this file system has no such names")
    assert seen[NO_UTF8].problem is None


LABELS = {
    "box": BOX,
    "class past the last": "1 0.5 0.5 0.1 0.1\n",
    "class below zero": "-1 0.5 0.5 0.1 0.1\n",
    "class and a half": "0.5 0.5 0.5 0.1 0.1\n",
    "four columns": "0 0.5 0.5 0.1\n",
    "six columns": "0 0.5 0.5 0.1 0.1 0.9\n",
    "words": "thing 0.5 0.5 0.1 0.1\n",
    "not a number": "0 nan 0.5 0.1 0.1\n",
    "infinite": "0 0.5 inf 0.1 0.1\n",
    "pixels": "0 320 240 50 50\n",
    "just outside": "0 1.005 0.5 0.1 0.1\n",
    "outside": "0 1.02 0.5 0.1 0.1\n",
    "just below zero": "0 -0.005 0.5 0.1 0.1\n",
    "below zero": "0 -0.02 0.5 0.1 0.1\n",
    "negative width": "0 0.5 0.5 -0.005 0.1\n",
    "no width": "0 0.5 0.5 0 0.1\n",
    "over the edge": "0 0.95 0.5 0.4 0.1\n",
    "twice": BOX + BOX,
    "triangle": "0 0.1 0.1 0.5 0.1 0.5 0.5\n",
    "polygons": "0 0.1 0.1 0.5 0.1 0.5 0.5\n0 0.1 0.1 0.5 0.1 0.5 0.5 0.2 0.4\n",
    "polygon with half a point": "0 0.1 0.1 0.5 0.1 0.5 0.5 0.2\n",
    "polygon and box": "0 0.1 0.1 0.5 0.1 0.5 0.5\n" + BOX,
    "polygon outside": "0 0.9 0.1 1.5 0.1 1.5 0.5\n",
    "blank lines": "\n\n" + BOX + "\n",
    "byte order mark": "\ufeff" + BOX,
    "empty": "",
    "a bad line among good ones": BOX + "0 0.5 0.5 0.1\n" + "0 0.2 0.2 0.1 0.1\n",
}


def test_a_image_is_lost_by_its_labels_exactly_where_ultralytics_leaves_it_out(tmp_path):
    """Asked of Ultralytics' own function, for each way in which a line can be wrong."""
    from ultralytics.data.utils import verify_image_label

    image = drawn(1)
    for name, text in LABELS.items():
        save(tmp_path, "train", f"{name}.png", image, text)
    theirs = {}
    for name in LABELS:
        image = tmp_path / "images" / "train" / f"{name}.png"
        label = tmp_path / "labels" / "train" / f"{name}.txt"
        theirs[name] = bool(verify_image_label((str(image), str(label), "", False, 1, 0, 0, False))[8])
    ours = {Path(image.path).stem: is_dropped(image) for image in read(tmp_path).images}
    assert ours == theirs
    assert (theirs["box"], theirs["words"]) == (False, True)


def test_lines_that_cost_no_image_are_told_too(tmp_path):
    for name in ("box", "no width", "over the edge", "twice", "triangle"):
        save(tmp_path, "train", f"{name}.png", drawn(1), LABELS[name])
    save(tmp_path, "train", "unlabelled.png", drawn(1), None)
    write_label(tmp_path, "train", "stray.png", BOX)
    write_label(tmp_path, "train", "classes.txt", "thing")
    found = read(tmp_path)
    by_name = {Path(image.path).stem: image.seen for image in found.images}
    assert by_name["no width"].faults == {"degenerate": 1}
    assert by_name["over the edge"].faults == {"sticks-out": 1}
    assert by_name["twice"].faults == {"duplicate": 1}
    assert by_name["unlabelled"].label == "missing"
    assert [note.line for note in by_name["twice"].notes] == [2]
    assert by_name["box"].sizes == (pytest.approx(0.25 * (160 * 120) ** 0.5 / 160, abs=1e-5),)
    assert by_name["triangle"].sizes == (pytest.approx(0.4 * (160 * 120) ** 0.5 / 160, abs=1e-5),)
    assert found.stray_labels == 1


def test_key_points_make_longer_lines(tmp_path):
    save(tmp_path, "train", "pose.png", drawn(1), "0 0.5 0.5 0.2 0.2 0.1 0.1 2 0.3 0.3 0\n")
    save(tmp_path, "train", "box.png", drawn(1))
    found = survey(str(tmp_path), {}, _train(tmp_path), sys.executable, classes=1, columns=11)
    assert [(len(image.seen.classes), dict(image.seen.faults)) for image in found.images] == [
        (0, {"columns": 1}),
        (1, {}),
    ]


def _train(root):
    return {"train": [str(path) for path in sorted((root / "images" / "train").iterdir())]}


DEADLY = """
import json, os, signal, sys, threading
print("something else prints first", flush=True)
sys.stdin.readline()
print('{"pillow": "1"}', flush=True)
for line in sys.stdin:
    index, image, label = json.loads(line)
    if "kills" in image:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hangs" in image:
        threading.Event().wait()
    print(json.dumps({"index": index}), flush=True)
"""


def test_a_picture_that_ends_its_reader_costs_that_image_only(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.setattr(readers, "SOURCE", tmp_path / "deadly.py")
    names = [f"{'kills' if at in (0, 17, 18, 99) else 'fine'}-{at}.jpg" for at in range(100)]
    found = survey("", {}, {"train": names}, sys.executable, readers=2)
    assert [image.path for image in found.images] == names
    assert {image.path for image in found.images if image.seen.problem == "reader-died"} == {
        name for name in names if "kills" in name
    }


def test_a_image_that_holds_its_reader_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.setattr(readers, "SOURCE", tmp_path / "deadly.py")
    monkeypatch.setattr(readers, "TOO_SLOW_S", 2.0)
    found = survey("", {}, {"train": ["a.jpg", "hangs.jpg", "b.jpg"]}, sys.executable, readers=1)
    assert [image.seen.problem for image in found.images] == [None, "too-slow", None]


def test_without_time_nothing_is_looked_at_and_that_is_known(tmp_path):
    save(tmp_path, "train", "a.png", drawn(1))
    found = read(tmp_path, seconds=0.0)
    assert (len(found.images), found.total, found.complete) == (0, 1, False)


def test_without_pillow_labels_are_looked_at_all_the_same(tmp_path):
    save(tmp_path, "train", "a.png", drawn(1))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    found = read(tmp_path, python=str(python))
    assert not found.decoded
    assert found.images[0].seen.classes == (0,)
    assert found.images[0].seen.oddities == ("not-scanned",)


@pytest.mark.parametrize("program", ["#!/bin/sh\necho out of order >&2; exit 3\n", None])
def test_an_interpreter_that_cannot_read_says_why(tmp_path, program):
    save(tmp_path, "train", "a.png", drawn(1))
    python = tmp_path / "python"
    if program:
        python.write_text(program)
        python.chmod(0o755)
    with pytest.raises(readers.ReadersFailed, match="out of order" if program else "cannot be started"):
        read(tmp_path, python=str(python))


def test_an_interpreter_that_exits_before_its_task_arrives_says_why(tmp_path, monkeypatch):
    def start(*args, **options):
        process = popen(*args, **options)
        if args[0][0] == str(python):  # not the watchdog
            process.wait()
        return process

    popen = subprocess.Popen
    monkeypatch.setattr(readers.subprocess, "Popen", start)
    save(tmp_path, "train", "a.png", drawn(1))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho out of order >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(readers.ReadersFailed, match="out of order"):
        read(tmp_path, python=str(python))


def test_any_beginning_of_the_order_is_spread_over_all_images():
    order = spread(MAX_IN_ORDER + 1000)
    assert sorted(order) == list(range(MAX_IN_ORDER + 1000))
    first = Counter(at * 10 // len(order) for at in order[:1000])
    assert min(first.values()) > 80
