"""A dataset that somebody else made costs no more time and memory than any other, and what is wrong with it is a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.frameworks.ultralytics import data_set, labels, write_split
from holdfast.probe.holdfast_probe import image_scan
from holdfast.schema.errors import DataSetInvalid
from holdfast.storage.safe_yaml import MAX_NODES, YamlRefused, load_yaml

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{', '.join(['*' + chr(97 + n)] * 9)}]}}\n" for n in range(9)
)
HEAD = "train: images/train\nval: images/val\n"
HOSTILE = {
    "more classes than memory": HEAD + "nc: 1000000000000",
    "many classes": HEAD + "nc: 50000000",
    "billion laughs": HEAD + LAUGHS + "names: *j",
    "merge keys": HEAD + MERGED + "names: *j",
    "a long base-60 number": HEAD + "names: [a]\nnc: 1" + ":00" * 200_000,
    "a long number": HEAD + "names: [a]\nnc: " + "9" * 100_000,
    "a list in itself": HEAD + "names: &a [*a]",
    "deep": HEAD + "names: " + "[" * 5000,
    "deep blocks": HEAD + "names:\n" + "".join(" " * n + "-\n" for n in range(1, 1000)),
    "a list as a name": HEAD + "names: [[a, b], c]",
    "a very long name": HEAD + "names: [" + "x" * 5000 + "]",
    "a tag that does not fit": HEAD + 'names: !!float ""',
    "a tag of Python's": HEAD + "names: !!python/object/apply:os.mkdir [made]",
    "a NUL in a path": 'train: "images\\0/train"\nval: images/val\nnames: [a]',
    "a NUL in the root": 'path: "a\\0b"\n' + HEAD + "names: [a]",
    "a long path": "train: " + "x/" * 35_000 + "\nval: images/val\nnames: [a]",
    "a long root": "path: " + "x" * 70_000 + "\n" + HEAD + "names: [a]",
    "a pipe as a split": "train: pipe\nval: images/val\nnames: [a]",
    "a device as a split": "train: /dev/zero\nval: images/val\nnames: [a]",
    "a list with a NUL": "train: binary.txt\nval: images/val\nnames: [a]",
    "a list of one long line": "train: long.txt\nval: images/val\nnames: [a]",
    "too large": HEAD + "names: [a]\n#" + "x" * (2 << 20),
}
READS = """
import json, resource, sys
from pathlib import Path
from holdfast.frameworks.ultralytics import data_set
from holdfast.schema.errors import DataSetInvalid
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for path in map(Path, sys.argv[1:]):
    try:
        said = "read: %r" % data_set.read(path)
    except DataSetInvalid as error:
        said = error.what
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (tmp_path / kind / split).mkdir(parents=True)
        (tmp_path / f"images/{split}/a.jpg").write_bytes(b"")
        (tmp_path / f"labels/{split}/a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary.txt").write_bytes(b"a.jpg\nb\0.jpg\n")
    (tmp_path / "long.txt").write_bytes(b"x" * 100_000 + b".jpg\n")
    return tmp_path


def test_a_hostile_data_yaml_is_a_sentence(folder):
    """Each within a gigabyte of memory and all within a minute, which none of them was: the last file is read."""
    paths = []
    for number, text in enumerate(HOSTILE.values()):
        paths.append(folder / f"{number}.yaml")
        paths[-1].write_text(text)
    (folder / "good.yaml").write_text(HEAD + "names: [a]")
    os.mkfifo(folder / "pipe.yaml")
    done = subprocess.run(
        [sys.executable, "-c", READS, *paths, folder / "pipe.yaml", "/dev/zero", "nul\\0", folder / "good.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *said, pipe, device, _, good = map(json.loads, done.stdout.splitlines())
    for name, words in zip(HOSTILE, said, strict=True):
        assert not words.startswith("read:"), name
        assert len(words) < 1500, name
    assert "not a regular file" in pipe
    assert "not a regular file" in device
    assert good.startswith("read: DataSet")
    assert not (folder / "made").exists()


def test_ordinary_yaml_is_read_as_before():
    """Anchors, merge keys, dates and numbers of every kind, as long as they stay small."""
    import yaml

    text = (
        "a: &a {x: 1, y: 2020-01-01}\nb: {<<: *a, z: 0x1f}\nc: [*a, *a]\nnames: {0: one, 1: två}\nnc: 1_0\n"
        "f: 1.5e3\nt: 1:30\ns: |\n  long\n  text\nn: ~\ny: yes\n"
    )
    assert load_yaml(text.encode()) == yaml.safe_load(text)


def test_values_count_as_often_as_they_are_repeated():
    """One list of a thousand, ninety-nine times, is within the bound; a hundred and one times is not."""
    thousand = f"a: &a [{', '.join('x' * 998)}]\n"
    times = MAX_NODES // 1000
    load_yaml((thousand + f"b: [{', '.join(['*a'] * (times - 2))}]").encode())
    with pytest.raises(YamlRefused, match="values"):
        load_yaml((thousand + f"b: [{', '.join(['*a'] * (times + 1))}]").encode())


def test_a_pipe_as_a_label_or_a_image_is_not_waited_for(folder):
    """Neither by `init`, which looks at some labels, nor by the readers of images."""
    (folder / "labels/train/a.txt").unlink()
    os.mkfifo(folder / "labels/train/a.txt")
    (folder / "data.yaml").write_text(HEAD + "names: [a]")
    sample = labels.sample_labels(data_set.read(folder / "data.yaml"), "train")
    assert [fault.message for fault in sample.faults] == ["cannot be read: not a regular file"]
    scanner = image_scan.ImageScanner()
    assert scanner.scan(str(folder / "pipe")) == {"problem": "not-a-file"}
    assert scanner.scan("a\0b")["problem"] == "refused"
    for path in ("pipe", "a\0b", "/dev/zero"):
        assert image_scan.Labels(1, None, (1, 1)).read(path) == "unreadable"


def test_labels_of_any_size_are_looked_at_up_to_a_bound(folder, monkeypatch):
    """What was not looked at is not claimed to have been."""
    monkeypatch.setattr(labels, "MAX_READ", 30)
    for number in range(9):
        (folder / f"images/train/{number}.jpg").write_bytes(b"")
        (folder / f"labels/train/{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (folder / "data.yaml").write_text(HEAD + "names: [a]")
    sample = labels.sample_labels(data_set.read(folder / "data.yaml"), "train")
    assert (sample.checked, sample.total, sample.missing, sample.boxes) == (2, 10, 0, 2)


def test_a_split_that_is_half_the_disk_is_not_walked(folder, monkeypatch):
    """`train: /` names every folder of the machine."""
    monkeypatch.setattr(data_set, "MAX_FOLDERS", 3)
    for number in range(5):
        (folder / f"images/train/{number}").mkdir()
    (folder / "data.yaml").write_text(HEAD + "names: [a]")
    with pytest.raises(DataSetInvalid, match="more than 3 folders"):
        data_set.read(folder / "data.yaml")


def test_a_list_of_images_is_read_line_by_line(folder):
    """With a mark at its start, as editors leave it, and names from its own folder."""
    (folder / "list.txt").write_text("﻿./images/train/a.jpg\n\nimages/train/ä.png\nnotes.txt\n", encoding="utf-8")
    (folder / "data.yaml").write_text("train: list.txt\nval: images/val\nnames: [a]")
    found = data_set.read(folder / "data.yaml").splits["train"]
    assert found == [folder / "images/train/a.jpg", Path("images/train/ä.png")]


def test_the_yaml_of_a_split_is_read_within_the_same_bounds(folder):
    """`--write-split` reads the data yaml once more."""
    (folder / "data.yaml").write_text(HEAD + "names: [a]")
    data = data_set.read(folder / "data.yaml")
    (folder / "data.yaml").write_text(HEAD + LAUGHS + "names: *j")
    with pytest.raises(YamlRefused):
        write_split._yaml(data, folder / "new", ["train", "val"])


@pytest.mark.parametrize("variable", ["", "~nosuchuser/x"])
def test_no_home_and_no_such_user_are_no_failure(monkeypatch, variable):
    """In a container under a number that no user has, Ultralytics' own settings are not there."""
    for name in ("HOME", "XDG_CONFIG_HOME", "YOLO_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv("YOLO_CONFIG_DIR", variable)
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("uid not found")))
    assert data_set.find_ultralytics_folder("datasets_dir") is None


def test_a_link_to_a_image_with_a_long_name_can_be_made(tmp_path):
    """A name of 255 bytes has no room for the number that a dry run puts before it."""
    long = tmp_path / ("ä" * 125 + ".jpg")
    long.touch()
    (tmp_path / data_set.link_name(7, long)).symlink_to(long)
    assert data_set.link_name(7, Path("a/b.jpg")) == "00007-b.jpg"


def test_a_name_too_long_for_any_file_is_a_image_that_is_missing(folder):
    """`Path.is_file` raises for such a name: `init` ended in a traceback."""
    (folder / "names.txt").write_text("x" * 300 + ".jpg\n")
    (folder / "data.yaml").write_text("train: names.txt\nval: images/val\nnames: [a]\n")
    command = [sys.executable, "-m", "holdfast", "init", "data.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 1 checked images for train do not exist" in done.stdout


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_the_kernels_folders_are_not_walked(tmp_path):
    """/proc has links to every folder of the machine: an image that is reached only through it is none of the dataset."""
    (tmp_path / "1.jpg").touch()
    (tmp_path / "link").symlink_to("/proc/self")
    assert list(data_set._walk(tmp_path, 10)) == [tmp_path / "1.jpg"]
    assert list(data_set._walk(Path("/proc/self/fd"), 10)) == []
    assert next(data_set._walk(Path("/proc"), 10), None) is None
