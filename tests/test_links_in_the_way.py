"""Links that somebody planted under names that Holdfast writes to: nothing is made where they lead."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace

import pytest

from holdfast.diagnosis.dataset.splitting import Split
from holdfast.frameworks.ultralytics import draft_plan
from holdfast.frameworks.ultralytics.write_split import write as write_split
from holdfast.schema.errors import FolderNotWritable, UsageError
from holdfast.schema.plan import Plan
from holdfast.storage import folder
from holdfast.storage.folder import RunFolder, make_stage, write_atomically
from holdfast.storage.plan_copy import write_plan
from holdfast.supervisor.supervisor import take_over


@pytest.fixture
def outside(tmp_path):
    """What must stay as it is."""
    made = tmp_path / "outside"
    made.mkdir()
    return made


@pytest.fixture
def run(tmp_path) -> RunFolder:
    (tmp_path / "work").mkdir()
    made = folder.create(["python"], root=tmp_path / "work")
    write_plan(made, Plan(cwd=str(tmp_path), command=["no-such-program"]))
    return made


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A dataset of two images, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.jpg").touch()
    yaml = tmp_path / "data.yaml"
    yaml.write_text("train: train\nval: val\nnames: [a]\n")
    return yaml


@pytest.mark.parametrize("force", [False, True])
def test_init_writes_through_no_link(data, outside, tmp_path, force):
    """Neither through one that leads nowhere yet, nor through one to a file; with --force, too."""
    plan = tmp_path / "plan.toml"
    plan.symlink_to(outside / "new")
    with pytest.raises(UsageError, match="is a link"):
        draft_plan.init(data, model="yolo11n.yaml", out=plan, force=force)
    assert not list(outside.iterdir())


def test_a_plan_is_written_over_only_where_it_is_a_file(data, tmp_path):
    """With --force it takes the place of a plan and keeps the usual mode; a FIFO is not waited for."""
    plan = tmp_path / "plan.toml"
    plan.write_text("was here")
    with pytest.raises(UsageError, match="already exists"):
        draft_plan.init(data, model="yolo11n.yaml", out=plan, force=False)
    draft_plan.init(data, model="yolo11n.yaml", out=plan, force=True)
    umask = os.umask(0)
    os.umask(umask)
    assert "was here" not in plan.read_text()
    assert stat.S_IMODE(plan.stat().st_mode) == 0o666 & ~umask
    plan.unlink()
    os.mkfifo(plan)
    with pytest.raises(UsageError, match="not a regular file"):
        draft_plan.init(data, model="yolo11n.yaml", out=plan, force=True)


def test_a_split_is_not_begun_where_a_link_is_in_the_way(outside, tmp_path):
    """A link that leads nowhere is a file that is there: nothing is written, not even the lists before it."""
    into = tmp_path / "split"
    into.mkdir()
    (into / "val.txt").symlink_to(outside / "new")
    yaml = tmp_path / "data.yaml"
    yaml.write_text("names: [a]\n")
    data = SimpleNamespace(splits={}, path=yaml)
    split = Split.__new__(Split)
    object.__setattr__(split, "train", ("a.jpg",))
    object.__setattr__(split, "val", ("b.jpg",))
    with pytest.raises(FolderNotWritable, match=r"already contains val\.txt"):
        write_split(split, into, data)
    assert [each.name for each in into.iterdir()] == ["val.txt"]
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", ["attempts", "attempts/2", "stages", "stages/1-a", "snapshots"])
def test_resume_makes_nothing_through_a_link(run, outside, name):
    """A run whose folders lead elsewhere is refused in a sentence."""
    place = run.path / name
    if name == "attempts":
        place.rmdir()
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside, target_is_directory=True)
    with pytest.raises(FolderNotWritable, match="is a symlink") as refused:
        take_over(run, Plan(cwd="/", command=["no-such-program"]))
    assert str(place) in refused.value.what
    assert not list(outside.iterdir())


def test_what_is_written_whole_replaces_a_link(run, outside):
    """Summary, plan and reports: the link goes, what it led to stays, and the file is for its owner alone."""
    (outside / "mine").write_text("mine")
    run.summary.symlink_to(outside / "mine")
    write_atomically(run.summary, "{}")
    assert (outside / "mine").read_text() == "mine"
    assert not run.summary.is_symlink()
    assert stat.S_IMODE(run.summary.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["stages", "stages/1-a"])
def test_a_stage_is_made_through_no_link(run, outside, name):
    """Also where the link was planted after the run was taken over."""
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).symlink_to(outside, target_is_directory=True)
    with pytest.raises(FolderNotWritable, match="link"):
        make_stage(run, 1, "a")
    assert not list(outside.iterdir())


def test_an_attempt_is_made_through_no_link(run, outside):
    """As a stage is."""
    (run.path / "attempts").rmdir()
    (run.path / "attempts").symlink_to(outside, target_is_directory=True)
    with pytest.raises(OSError, match="link"):
        run.make_attempt(1)
    assert not list(outside.iterdir())
