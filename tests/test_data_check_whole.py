"""The checks of a dataset from its yaml to their answers, on real files, and the split that mends it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from data_sets import BOX, described, drawn, save
from PIL import Image

from holdfast.frameworks.ultralytics.data_set import read
from holdfast.frameworks.ultralytics.dataset_scan import clear
from holdfast.preflight.case_contexts import RecordedMachine
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.interpreter import Interpreter
from holdfast.preflight.checks.runner import run_all, select_checks
from holdfast.schema.plan import Plan, Stage


def context(data, **more):
    clear()
    facts = {
        "cwd": Path(data).parent,
        "machine": RecordedMachine(),
        "environment": {},
        "interpreter": Interpreter(executable=sys.executable),
        "data": Path(data),
        **more,
    }
    return CheckContext(**facts)


def answers(data, **more):
    return {result.check.id: result for result in run_all(select_checks(["data"]), context(data, **more))}


@pytest.fixture(scope="module")
def filmed(tmp_path_factory):
    """Five videos, every fourth frame of each in validation; the camera moves by a hundredth of the width a frame."""
    root = tmp_path_factory.mktemp("filmed")
    for video in range(5):
        for frame in range(8):
            name = f"video_{video}_frame_{frame:03}.jpg"
            save(root, "val" if frame % 4 == 2 else "train", name, drawn(video, shift=frame / 100))
    return described(root)


@pytest.fixture(scope="module")
def found(filmed):
    return answers(filmed, write_split=filmed.parent / "apart")


def test_a_healthy_data_set_passes_but_for_its_split(found):
    assert {name: result.status for name, result in found.items()} == {
        "data-classes-shown": "passed",
        "data-labels-sound": "passed",
        "data-objects-visible": "passed",
        "data-images-readable": "passed",
        "data-validation-apart": "warn",
    }
    assert found["data-images-readable"].message == "40 images (JPEG), all readable"
    assert found["data-labels-sound"].message == "40 objects on 40 of 40 images"
    assert "100% of validation (10 of 10 images)" in found["data-validation-apart"].findings[0].message


def test_the_split_that_is_written_has_no_leak(filmed, found):
    """Nothing is lost, the class names come along, and the same check passes on it."""
    split = filmed.parent / "apart" / "data.yaml"
    assert f"train with data={split}" in found["data-validation-apart"].message
    data = read(split)
    assert data.names == ["thing"]
    assert sorted(path for paths in data.splits.values() for path in paths) == sorted(
        (filmed.parent / "images").rglob("*.jpg")
    )
    assert answers(split)["data-validation-apart"].status == "passed"


def test_ultralytics_trains_on_the_split_that_is_written(filmed, found):
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    data = check_det_dataset(str(filmed.parent / "apart" / "data.yaml"), autodownload=False)
    images = [YOLODataset(data[split], data=data, task="detect", imgsz=64).labels for split in ("train", "val")]
    assert [len(part) for part in images] == [32, 8]
    assert all(len(label["cls"]) == 1 for part in images for label in part)


def test_nothing_is_overwritten(filmed, found):
    before = (filmed.parent / "apart" / "train.txt").read_bytes()
    again = answers(filmed, write_split=filmed.parent / "apart")["data-validation-apart"]
    assert "already contains train.txt, val.txt, data.yaml" in again.findings[-1].message
    assert (filmed.parent / "apart" / "train.txt").read_bytes() == before


def test_without_being_asked_nothing_is_written(filmed, found):
    before = sorted(filmed.parent.rglob("*"))
    told = answers(filmed)["data-validation-apart"].findings[0]
    assert sorted(filmed.parent.rglob("*")) == before
    assert "a split by group: 32 images for train, 8 for val (20%), in 5 groups" in " ".join(told.evidence)


def test_a_spoiled_data_set_is_named_for_what_it_is(tmp_path):
    for at in range(6):
        save(tmp_path, "train", f"a{at}q.png", drawn(at), "5 0.5 0.5 0.1 0.1\n")
        save(tmp_path, "val", f"b{at}q.png", drawn(10 + at), None)
    cut = tmp_path / "images" / "train" / "a0q.png"
    cut.write_bytes(cut.read_bytes()[:-500])
    found = answers(described(tmp_path))
    assert found["data-images-readable"].status == "warn"
    labels = [(finding.severity, finding.message) for finding in found["data-labels-sound"].findings]
    assert [severity for severity, _ in labels] == ["fatal", "fatal"]
    assert "None of the 6 images in val has a label" in labels[0][1]
    assert "6 images (100% of train) have an unusable label line" in labels[1][1]


def test_a_data_set_that_is_not_there_is_fatal_once(tmp_path):
    found = answers(tmp_path / "nowhere.yaml")
    assert found["data-images-readable"].status == "fatal"
    assert "There is no dataset at" in found["data-images-readable"].findings[0].message
    assert {result.status for name, result in found.items() if name != "data-images-readable"} == {"not checked"}


def test_the_largest_image_size_of_all_stages_counts(tmp_path):
    """Objects of a fiftieth of the width: too small at 160 px, fine at 1280."""
    for split in ("train", "val"):
        for at in range(6):
            lines = "".join(f"0 0.{place} 0.5 0.02 0.0267\n" for place in (1, 3, 5, 7))
            save(tmp_path, split, f"{split}{at}q.png", Image.new("RGB", (160, 120), (at * 20, 0, 0)), lines)
    data = described(tmp_path)

    def message(**more):
        return answers(data, **more)["data-objects-visible"]

    assert message(settings={"imgsz": 160}).status == "warn"
    assert "imgsz=800" in message(settings={"imgsz": 160}).findings[0].remedies[0]
    stages = Plan(
        cwd=str(tmp_path), trainer="ultralytics", stages=[Stage(settings={"imgsz": size}) for size in (160, 1280)]
    )
    assert message(settings={"imgsz": 160}, plan=stages).message.startswith("48 objects at imgsz 1280: median 26 px")
    assert message(settings={"imgsz": "[120, 160]"}).message.startswith("48 objects at imgsz 160")
    assert message().message.startswith("48 objects at imgsz 640")


def test_progress_is_told_and_no_reader_is_left_behind(tmp_path):
    for at in range(3):
        save(tmp_path, "train", f"{at}q.png", drawn(at))
        save(tmp_path, "val", f"{at}v.png", drawn(10 + at), BOX)
    told = []
    here = context(described(tmp_path), notify=lambda *words: told.append(words))
    select_checks(["data-labels-sound"])[0].run(here)
    assert told[0] == (0, 6, "images")
    assert told[-1] == (6, 6, "images")
    assert "image-reader" not in {thread.name for thread in threading.enumerate()}
