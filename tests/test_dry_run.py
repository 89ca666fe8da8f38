"""A dry run changes nothing of the user's, ends when it is to, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from holdfast.probe.holdfast_probe.frameworks.ultralytics import dry_run as ultralytics_dry_run

from holdfast.frameworks.ultralytics import data_set, dry_run_settings
from holdfast.machine import this_machine
from holdfast.preflight.checks import by_id
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.runner import run_all
from holdfast.preflight.dry_run import environment, scratch
from holdfast.preflight.dry_run.cache import REQUEST
from holdfast.preflight.dry_run.run import find_device_argument, replace_device, run_in_scratch
from holdfast.probe.holdfast_probe.dry_run.batches import copy_batch, find_input, zero_input
from holdfast.probe.holdfast_probe.dry_run.write_guard import WriteGuard

LOOP = """
import os, subprocess, sys
import torch
from torch import nn
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
"""
STEP = "    optimizer.zero_grad(); nn.functional.mse_loss(model(x), y).backward(); optimizer.step()\n"


def context(folder: Path, *command: str) -> CheckContext:
    return CheckContext(
        cwd=folder, machine=this_machine(), environment={**os.environ, "OMP_NUM_THREADS": "1"}, command=command
    )


def lives(pid: int) -> bool:
    """One that ended and was not yet waited for by whoever adopted it does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- the scratch copy -------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "home/project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("import pkg")
    (folder / "pkg/__init__.py").write_text("")
    (folder / "large.bin").write_bytes(b"1" * 2000)
    (folder / "images").mkdir()
    for n in range(12):
        (folder / f"images/{n}.png").write_bytes(b"p")
    (folder / "__pycache__").mkdir()
    (folder / "link").symlink_to("train.py")
    (tmp_path / "home/beside.txt").write_text("beside")
    return folder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(scratch, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(scratch, "MAX_ENTRIES", 10)


@pytest.mark.usefixtures("small")
def test_small_files_are_copied_and_large_ones_linked(project, tmp_path):
    made = scratch.make(project, tmp_path / "scratch")
    assert (made.folder / "train.py").read_text() == "import pkg"
    assert not (made.folder / "train.py").is_symlink()
    assert (made.folder / "pkg/__init__.py").is_file()
    assert sorted(made.linked) == ["images/", "large.bin"]
    assert (made.folder / "images").resolve() == project / "images"
    assert not (made.folder / "__pycache__").exists()
    assert (made.folder / "../beside.txt").read_text() == "beside"
    (made.folder / "train.py").write_text("changed")
    assert (project / "train.py").read_text() == "import pkg"


def test_what_is_copied_is_bounded(project, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "MAX_FILES", 3)
    made = scratch.make(project, tmp_path / "scratch")
    assert made.copied == 3
    assert len(made.linked) == 15 - 3


def test_words_that_lead_into_the_folder_lead_into_the_copy(project, tmp_path):
    made = scratch.make(project, tmp_path / "scratch")
    assert made.redirect(f"{project}/train.py") == f"{made.folder}/train.py"
    assert made.redirect(f"project={project}/runs") == f"project={made.folder}/runs"
    assert made.redirect(f"{project}-2/train.py") == f"{project}-2/train.py"
    assert made.redirect("data=coco.yaml") == "data=coco.yaml"


def test_what_changed_in_the_folder_is_seen(project):
    before = scratch.stat_files(project)
    assert scratch.find_changed(before, scratch.stat_files(project)) == []
    (project / "train.py").write_text("something else")
    (project / "new").write_text("")
    assert scratch.find_changed(before, scratch.stat_files(project)) == [
        str(project / "new"),
        str(project / "train.py"),
    ]


def test_the_device_is_changed_where_the_command_names_it():
    assert replace_device(["yolo", "train", "device=mps", "batch=4"], "cpu") == [
        "yolo",
        "train",
        "device=cpu",
        "batch=4",
    ]
    assert replace_device(["python", "t.py", "--device", "mps"], "cpu") == ["python", "t.py", "--device", "cpu"]
    assert replace_device(["python", "t.py", "--device=mps"], "cpu") == ["python", "t.py", "--device=cpu"]
    assert find_device_argument(["python", "t.py", "--devices", "2"]) is None


def test_a_large_data_set_is_dry_run_on_a_few_of_its_images(tmp_path, monkeypatch):
    """With links: Ultralytics would read every label before its first batch."""
    monkeypatch.setattr(dry_run_settings, "SAMPLE", {"train": 3, "val": 2})
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (tmp_path / f"data/{kind}/{split}").mkdir(parents=True)
        for n in range(8):
            (tmp_path / f"data/images/{split}/{n}.png").write_bytes(b"p")
            (tmp_path / f"data/labels/{split}/{n}.txt").write_text("0 0.5 0.5 0.1 0.1")
    yaml = tmp_path / "data/data.yaml"
    yaml.write_text(f"path: {tmp_path}/data\ntrain: images/train\nval: images/val\nnames: [thing]\n")
    asked = replace(context(tmp_path, "yolo", "train"), data=yaml)
    made = scratch.Scratch(tmp_path, tmp_path / "scratch")
    assert "data" not in environment.get_settings(asked, tmp_path / "small", made)
    monkeypatch.setattr(dry_run_settings, "MANY_IMAGES", 10)
    few = Path(environment.get_settings(asked, tmp_path / "root", made)["data"])
    read = data_set.read(few)
    assert [len(read.splits[split]) for split in ("train", "val")] == [3, 2]
    assert all(image.exists() and data_set.label_path(image).exists() for image in read.splits["train"])


# --- the user's files -------------------------------------------------------------------------------------------------


def test_what_exists_outside_is_kept_and_what_is_new_is_told(tmp_path):
    inside, outside = tmp_path / "scratch", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (inside / "link").symlink_to(outside / "mine")
    keeper = WriteGuard(str(inside / "log"), [str(inside)])
    assert keeper.may_write(inside / "anything", "open")
    assert keeper.may_write(outside / "new", "open")
    assert not keeper.may_write(outside / "mine", "open")
    assert not keeper.may_write(inside / "link", "open"), "what a link leads to is written"
    assert keeper.may_write(inside / "link", "os.remove"), "of a link, the link itself is removed"
    assert not keeper.may_write(outside, "shutil.rmtree")
    assert keeper.may_write("/dev/null", "open")
    with pytest.raises(PermissionError, match="dry run"):
        keeper("open", (str(outside / "mine"), "a", 0))
    keeper("open", (str(outside / "mine"), "rb", 0))
    said = (inside / "log").read_text()
    assert [said.count('"made"'), said.count('"refused"')] == [1, 2], "each path once"


def test_trackers_are_switched_off_in_memory_alone():
    """Setting one in Ultralytics' own way would write the user's settings file."""

    class Written(dict):
        def __setitem__(self, name, value):
            raise AssertionError(name)

        update = __setitem__

    settings = Written(wandb=True, mlflow=True, runs_dir="/runs")
    ultralytics_dry_run._disable_trackers(SimpleNamespace(SETTINGS=settings))
    assert settings == {"wandb": False, "mlflow": False, "runs_dir": "/runs"}


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_batch_is_its_own_and_its_input_is_known():
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    x, y = torch.ones(4, 3), torch.arange(4)
    for batch, expected in (
        ((x, y), x),
        ([{"pixel_values": x, "labels": y}][0], x),
        ({"img": x, "cls": y, "files": ["a"]}, x),
        (((x, x + 1), y), x),
        ((y, x), x),
        (x, x),
    ):
        found, _ = find_input(torch, batch)
        assert found is expected
        own = copy_batch(torch, batch)
        assert zero_input(torch, own) == (True, False)
        assert not find_input(torch, own)[0].any()
        assert bool(x.all())
    array = numpy.ones((2, 2))
    own = copy_batch(torch, (array, 1))
    zero_input(torch, own)
    assert not own[0].any()
    assert array.all()


# --- whole dry runs -------------------------------------------------------------------------------------------------


def test_a_training_that_catches_everything_is_ended_and_leaves_nothing(tmp_path):
    """It writes into its folder, starts a process of its own that outlives it, and saves over a file of the user's."""
    pytest.importorskip("torch")
    kept, log = tmp_path / "kept.pt", tmp_path / "work/log.txt"
    log.parent.mkdir()
    log.write_text("yesterday")
    kept.write_text("weights of last week")
    (tmp_path / "work/train.py").write_text(
        LOOP
        + textwrap.dedent(f"""
        open("log.txt", "w").write("today")
        open({str(tmp_path / "made.txt")!r}, "w").write("")
        torch.save(model.state_dict(), {str(kept)!r})
        beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open({str(tmp_path / "made.txt")!r}, "w").write(str(beside.pid))
        assert os.environ["WANDB_MODE"] == "disabled"
        """)
        + "while True:\n  try:\n"
        + STEP
        + "  except BaseException: pass\n"
    )
    free = replace(context(log.parent, sys.executable, "train.py"), confine_writes=False)
    come = run_in_scratch(free, {"dry_run": {**REQUEST, "curve_steps": 12}}, 60.0)
    assert (come.code, come.ended["why"]) == (0, "all experiments are done"), come
    assert log.read_text() == "yesterday"
    assert kept.read_text() == "weights of last week"
    assert (come.created, come.refused_paths, list(come.changed)) == ([str(tmp_path / "made.txt")], [str(kept)], [])
    assert sorted(path.name for path in log.parent.iterdir()) == ["log.txt", "train.py"]
    assert not lives(int((tmp_path / "made.txt").read_text()))
    (result,) = run_all(
        [by_id()["learning-first-steps"]],
        CheckContext(cwd=tmp_path, machine=this_machine(), environment={}, command=("x",), make_dry_run=lambda _: come),
    )
    assert result.status == "passed"
    assert any(str(kept) in found.message for found in result.findings)


def test_a_script_that_never_steps_is_ended_in_time(tmp_path):
    (tmp_path / "train.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    come = run_in_scratch(context(tmp_path, sys.executable, "train.py"), {"dry_run": REQUEST}, 3.0)
    assert come.code is None
    assert not any(lives(int(line)) for line in come.last_lines if line.isdigit())
    results = run_all(
        [by_id()["learning-first-steps"], by_id()["device-operators"], by_id()["learning-one-batch"]],
        CheckContext(cwd=tmp_path, machine=this_machine(), environment={}, command=("x",), make_dry_run=lambda _: come),
    )
    for result in results:
        assert result.status == "not checked"
        assert "no step in" in result.message


def test_a_script_that_ends_before_its_first_step_says_why(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nsys.exit('there is no dataset in ./data')\n")
    asked = context(tmp_path, sys.executable, str(tmp_path / "train.py"))
    (result,) = run_all([by_id()["learning-first-steps"]], asked, seconds=30.0)
    assert result.status == "fatal"
    assert "there is no dataset" in result.findings[0].message


def test_a_command_that_cannot_be_started_is_not_checked(tmp_path):
    (result,) = run_all([by_id()["learning-first-steps"]], context(tmp_path, "no-such-program"), seconds=10.0)
    assert result.status == "not checked"
    assert "could not be started" in result.message
