"""`holdfast init` and what it stands on: datasets that are read, ground that is looked at, a plan that can be run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.frameworks.ultralytics import data_set, draft_plan, labels, validate
from holdfast.frameworks.ultralytics.draft_plan import MachineInfo, choose_batch, choose_epochs, draft
from holdfast.frameworks.ultralytics.install import UltralyticsInstall, find_ultralytics
from holdfast.preflight import validate_plan
from holdfast.schema.errors import DataSetInvalid, UsageError
from holdfast.storage.plan.load import read
from holdfast.supervisor.load_plan import open_plan

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _of_its_own(tmp_path, monkeypatch):
    """No settings of a user's Ultralytics, and the `yolo` of this environment."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)


def make_data_set(folder, *, train=6, val=2, label="0 0.5 0.5 0.2 0.2\n", yaml="names: [a, b]"):
    """Images that are none: only their names count here."""
    for split, count in (("train", train), ("val", val)):
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        for number in range(count):
            (folder / "images" / split / f"{number}.jpg").touch()
            (folder / "labels" / split / f"{number}.txt").write_text(label)
    (folder / "data.yaml").write_text(f"train: images/train\nval: images/val\n{yaml}\n")
    return folder / "data.yaml"


def survey_of(folder, more="", **settings):
    values = {"model": "yolo11n.yaml", "data": "data.yaml", **settings}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    (folder / "plan.toml").write_text("\n".join(["[settings]", *lines, more]))
    return validate_plan.validate(read(folder / "plan.toml"))


class TestDataSet:
    def test_images_names_and_root(self, tmp_path):
        found = data_set.read(make_data_set(tmp_path))
        assert found.root == tmp_path
        assert found.names == ["a", "b"]
        assert {split: len(images) for split, images in found.splits.items()} == {"train": 6, "val": 2}
        label = data_set.label_path(found.splits["train"][3])
        assert label == tmp_path / "labels" / "train" / "3.txt"

    def test_all_forms_of_a_split(self, tmp_path):
        """Folders in folders, several of them, lists of paths; links are followed once, hidden files never."""
        make_data_set(tmp_path)
        train = tmp_path / "images" / "train"
        (train / "deep").mkdir()
        (train / "deep" / "x.PNG").touch()
        (train / ".hidden.jpg").touch()
        (train / "notes.txt").touch()
        (train / "loop").symlink_to(train, target_is_directory=True)
        (tmp_path / "val.txt").write_text("./images/val/0.jpg\n\n./images/val/1.jpg\nnonsense\n")
        (tmp_path / "data.yaml").write_text(
            "train: [images/train, images/val]\nval: val.txt\nnames: {1: b, 0: a}\nkpt_shape: [17, 3]"
        )
        found = data_set.read(tmp_path / "data.yaml")
        assert len(found.splits["train"]) == 9
        assert found.splits["val"] == [tmp_path / "images/val/0.jpg", tmp_path / "images/val/1.jpg"]
        assert (found.names, found.keypoints) == (["a", "b"], (17, 3))

    def test_path_counts_from_where_the_training_runs(self, tmp_path):
        """And not from the yaml's folder, which is said with what to write instead."""
        inner = tmp_path / "sets"
        make_data_set(inner, yaml="names: [a]\npath: .")
        with pytest.raises(DataSetInvalid, match=r"images/train does not exist"):
            data_set.read(inner / "data.yaml", cwd=tmp_path)
        (inner / "data.yaml").write_text("train: train\nval: val\nnames: [a]\npath: images")
        with pytest.raises(DataSetInvalid, match=rf"write path: {inner / 'images'}\."):
            data_set.read(inner / "data.yaml", cwd=tmp_path)
        assert data_set.read(inner / "data.yaml", cwd=inner).root == inner / "images"

    def test_own_folder_of_data_sets(self, tmp_path):
        """As Ultralytics does, where its settings name one."""
        make_data_set(tmp_path / "many" / "cells")
        (tmp_path / "config" / "Ultralytics").mkdir(parents=True)
        settings = tmp_path / "config" / "Ultralytics" / "settings.json"
        settings.write_text(json.dumps({"datasets_dir": str(tmp_path / "many")}))
        (tmp_path / "cells.yaml").write_text("path: cells\ntrain: images/train\nval: images/val\nnc: 3")
        found = data_set.read(tmp_path / "cells.yaml")
        assert found.root == tmp_path / "many" / "cells"
        assert len(found.names) == 3
        settings.write_text("[" * 100_000)
        with pytest.raises(DataSetInvalid, match="path: cells, does not exist"):
            data_set.read(tmp_path / "cells.yaml")

    @pytest.mark.parametrize(
        ("yaml", "message"),
        [
            ("val: images/val\nnames: [a]", ["add train: images/train"]),
            ("train: images/train\nval: images/vall\nnames: [a]", ["images/vall does not exist"]),
            ("train: images\nval: labels\nnames: [a]", ["no images for val"]),
            ("train: images\nval: images", ["names no classes"]),
            ("train: images\nval: images\nnames: [a]\nnc: 2", ["nc: 2 but names 1"]),
            ("train: images\nval: images\nnames: {0: a, 2: b}", ["from 0 to 1 without a gap"]),
            ("train: images\nval: images\nnames: {x: a}", ["is not a number"]),
            ("train: 3\nval: data.yaml\nnames: [a]", ["train: is not a path", "no images for val"]),
            ("train: [images\nval: images", ["line 2", "not valid YAML"]),
            ("just text", ["not a data YAML file"]),
            ("train: images/x\nval: images/y\nnames: []", ["images/x", "images/y", "names no classes"]),
        ],
    )
    def test_what_is_missing_is_told(self, tmp_path, yaml, message):
        path = make_data_set(tmp_path)
        path.write_text(yaml)
        with pytest.raises(DataSetInvalid) as caught:
            data_set.read(path)
        for part in message:
            assert part in caught.value.what

    def test_what_is_no_file(self, tmp_path):
        make_data_set(tmp_path)
        for name, part in [
            ("date.yaml", "Did you mean"),
            ("images", "is a folder"),
            ("x/y.yaml", "does not exist either"),
        ]:
            with pytest.raises(DataSetInvalid, match=part):
                data_set.read(tmp_path / name)


class TestLabels:
    @pytest.mark.parametrize(
        ("label", "message", "class_id"),
        [
            ("2 0.5 0.5 0.1 0.1", "has class 2, but the YAML file names 2 (0 to 1)", True),
            ("-1 0.5 0.5 0.1 0.1", "not a class number", True),
            ("0.5 0.5 0.5 0.1 0.1", "not a class number", True),
            ("0 0.5 0.5 0.1", "4 columns", False),
            ("0 0.5 0.5 0.1 0.1 0.9", "6 columns", False),
            ("0 320 240 64 64", "not pixels", False),
            ("0 0.5 0.5 nan 0.1", "not finite", False),
            ("a 0.5 0.5 0.1 0.1", "not a number", False),
        ],
    )
    def test_wrong_lines(self, tmp_path, label, message, class_id):
        data = data_set.read(make_data_set(tmp_path, label=f"1 0.5 0.5 0.1 0.1\n\n{label}"))
        sample = labels.sample_labels(data, "val")
        assert (sample.checked, sample.boxes, len(sample.faults)) == (2, 4, 2)
        assert sample.faults[0].line == 3
        assert message in sample.faults[0].message
        assert sample.faults[0].class_id is class_id

    def test_polygons_corners_and_poses_are_labels(self, tmp_path):
        make_data_set(tmp_path / "a", label="0 0.1 0.1 0.2 0.1 0.2 0.2")
        assert not labels.sample_labels(data_set.read(tmp_path / "a/data.yaml"), "train").faults
        pose = "0 0.5 0.5 0.2 0.2" + " 0.4 0.4 2.0" * 3
        make_data_set(tmp_path / "b", label=pose, yaml="names: [a]\nkpt_shape: [3, 3]")
        assert not labels.sample_labels(data_set.read(tmp_path / "b/data.yaml"), "train").faults
        make_data_set(tmp_path / "c", label="7 0.5 0.5 0.2 0.2")
        found = data_set.read(tmp_path / "c/data.yaml")
        assert not labels.sample_labels(found, "train", any_class=True).faults
        assert labels.sample_labels(found, "train", oriented=True).faults

    def test_samples_are_even_and_counted(self, tmp_path):
        sample = labels.sample_labels(data_set.read(make_data_set(tmp_path, train=50)), "train", most=10)
        assert (sample.checked, sample.total) == (10, 50)
        assert sample.counted == "10 of 50, evenly sampled"
        assert labels.sample_evenly(list(range(50)), 10) == list(range(0, 50, 5))


class TestGround:
    def test_nothing_is_said_of_good_ground(self, tmp_path):
        make_data_set(tmp_path)
        assert survey_of(tmp_path) == validate_plan.Validation()

    def test_labels_out_of_range(self, tmp_path):
        path = make_data_set(tmp_path)
        (tmp_path / "labels/train/3.txt").write_text("0 .5 .5 .1 .1\n5 .5 .5 .1 .1")
        (problem,) = survey_of(tmp_path).problems
        assert "class 5" in problem
        assert "3.txt, line 2" in problem
        assert "all 6 were checked" in problem
        assert not survey_of(tmp_path, single_cls=True).problems
        path.write_text("train: images/train\nval: images/val\nnames: [a, b, c, d, e, f]")
        assert not survey_of(tmp_path).problems

    def test_few_unusable_labels_are_a_note_and_many_a_problem(self, tmp_path):
        make_data_set(tmp_path, train=40)
        (tmp_path / "labels/train/3.txt").write_text("0 3 3 3 3")
        assert [len(part) for part in (survey_of(tmp_path).problems, survey_of(tmp_path).notes)] == [0, 1]
        for number in range(4):
            (tmp_path / f"labels/train/{number}.txt").write_bytes(b"\xff\xfe")
        (problem,) = survey_of(tmp_path).problems
        assert "4 label files for train cannot be used" in problem

    def test_no_label_at_all(self, tmp_path):
        make_data_set(tmp_path)
        shutil.rmtree(tmp_path / "labels" / "val")
        (problem,) = survey_of(tmp_path).problems
        assert "No image for val has a label" in problem
        assert str(tmp_path / "labels/val/0.txt") in problem

    def test_missing_pieces(self, tmp_path):
        """Data, model, interpreter, folder: each one sentence, all at once."""
        said = survey_of(tmp_path, data="nodata.yaml", model="mine.pt").problems
        assert len(said) == 2
        assert any("There is no model" in problem for problem in said)
        assert any("There is no dataset" in problem for problem in said)
        (tmp_path / "plan.toml").write_text('command = "x"\ncwd = "gone"')
        assert "does not exist: fix cwd" in validate_plan.find_problems(read(tmp_path / "plan.toml"))[0]

    def test_models(self, tmp_path):
        """What Ultralytics ships is fine, what it would download is a note, what is no checkpoint is a problem."""
        make_data_set(tmp_path)
        assert survey_of(tmp_path, model="yolov8s-seg.yaml", task="detect") == validate_plan.Validation()
        assert "did you mean" in survey_of(tmp_path, model="yolo11mm.yaml").problems[0]
        said = survey_of(tmp_path, model="yolo11n.pt")
        assert not said.problems
        assert "download" in said.notes[0]
        (tmp_path / "mine.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        assert "Git LFS" in survey_of(tmp_path, model="mine.pt").problems[0]
        (tmp_path / "mine.pt").write_bytes(b"PK\x03\x04")
        assert survey_of(tmp_path, model="mine.pt") == validate_plan.Validation()
        assert "downloads" in survey_of(tmp_path, data="coco8.yaml").notes[0]

    def test_models_of_later_stages_are_carried_over(self, tmp_path):
        make_data_set(tmp_path)
        later = '[[stages]]\n[[stages]]\nfrom = "scratch"\nsettings.model = "gone.pt"'
        assert "gone.pt" in survey_of(tmp_path, later).problems[0]
        assert not survey_of(tmp_path, "[[stages]]\n[[stages]]\n").problems

    def test_biases_that_a_warm_up_would_throw_away(self, tmp_path):
        """A named Adam, trained weights, and the default that is made for SGD; said once, of the stage that it is true of."""
        make_data_set(tmp_path)
        stages = '[[stages]]\n[[stages]]\nname = "large"\nsettings = { optimizer = "AdamW", lr0 = 0.0005%s }'
        (note,) = survey_of(tmp_path, stages % "").notes
        assert "Stage large" in note
        assert "warmup_bias_lr = 0.0" in note
        assert not survey_of(tmp_path, stages % ", warmup_bias_lr = 0.0").notes
        assert not survey_of(tmp_path, stages.replace("AdamW", "SGD").replace("0.0005", "0.01") % "").notes

    def test_yolo_is_not_installed(self, tmp_path):
        make_data_set(tmp_path)
        bare = tmp_path / "bare" / "python"
        bare.parent.mkdir()
        bare.symlink_to("/bin/false")
        plan = tmp_path / "plan.toml"
        plan.write_text(f'python = "{bare}"\n[settings]\nmodel = "yolo11n.yaml"\ndata = "data.yaml"')
        assert "has no Ultralytics" in validate_plan.find_problems(read(plan))[0]
        bare.unlink()
        assert "There is no interpreter" in validate_plan.find_problems(read(plan))[0]

    def test_no_yolo_anywhere(self, tmp_path, monkeypatch):
        make_data_set(tmp_path)
        monkeypatch.setenv("PATH", "/bin")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        (problem,) = survey_of(tmp_path).problems
        assert "pip install ultralytics" in problem

    def test_setting_that_the_installed_version_does_not_know(self, tmp_path, monkeypatch):
        make_data_set(tmp_path)
        old = tmp_path / "old" / "cfg"
        (old / "models").mkdir(parents=True)
        (old / "models" / "yolo11.yaml").touch()
        (old / "default.yaml").write_text("model: # x\ndata:\nepochs: 3\n")
        monkeypatch.setattr(validate, "find_install", lambda _: UltralyticsInstall(tmp_path / "old"))
        (problem,) = survey_of(tmp_path, cutmix=0.5, epochs=3).problems
        assert "does not support the setting cutmix" in problem

    def test_folder_that_cannot_be_written(self, tmp_path):
        """Not even root may write there, so this holds for whoever runs the test."""
        make_data_set(tmp_path)
        said = survey_of(tmp_path, project="/proc/results").problems
        assert any("/proc/results is not writable" in problem for problem in said)

    def test_disk_too_small(self, tmp_path, monkeypatch):
        """The need grows with the model and with what is kept, and is told in parts."""
        make_data_set(tmp_path)
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 * GIB))
        assert not survey_of(tmp_path).problems
        (problem,) = survey_of(tmp_path, model="yolo11x.yaml").problems
        assert "1.0 GiB free" in problem
        assert "snapshots" in problem

    def test_budget_beyond_the_machine(self, tmp_path):
        make_data_set(tmp_path)
        (problem,) = survey_of(tmp_path, '[budget]\nmemory = "900 TB"').problems
        assert "there is only" in problem

    def test_home_is_found_without_importing(self):
        home = find_ultralytics([sys.executable])
        assert "epochs" in home.settings
        assert home.ships_model("yolo11n.yaml")
        assert not home.ships_model("yolo77n.yaml")
        assert find_ultralytics(["/bin/false"]) is None


class TestDraft:
    @pytest.mark.parametrize("accelerator", ["mps", "cuda", None])
    def test_draft_is_a_plan_on_every_machine(self, tmp_path, accelerator):
        data = data_set.read(make_data_set(tmp_path, train=30))
        text = draft(data, MachineInfo(16 * GIB, 8, accelerator), model="yolo11n.yaml", data_path="data.yaml")
        (tmp_path / "plan.toml").write_text(text)
        plan = open_plan(tmp_path / "plan.toml")
        assert [stage.name for stage in plan.stages] == ["small", "large"]
        small, large = ({**plan.settings, **stage.settings} for stage in plan.stages)
        assert small["imgsz"] < large["imgsz"]
        assert plan.stages[1].start == "best"
        assert plan.settings["device"] == {"mps": "auto", "cuda": "cuda", None: "cpu"}[accelerator]
        assert plan.policy.devices[-1] == "cpu"
        assert validate_plan.validate(plan) == validate_plan.Validation()

    def test_comments_show_keys_that_can_be_set(self, tmp_path):
        """Each line `# key = value` that is taken out of its comment, one at a time, leaves a plan."""
        data = data_set.read(make_data_set(tmp_path))
        lines = draft(data, MachineInfo(16 * GIB, 8, None), model="yolo11n.yaml", data_path="data.yaml").split("\n")
        tables = {number: line[2:] for number, line in enumerate(lines) if line.startswith("# [")}
        tried = 0
        for number, line in enumerate(lines):
            if not line.startswith("# ") or " = " not in line.partition("  #")[0]:
                continue
            table = max((at for at in tables if at < number and "" not in lines[at:number]), default=None)
            changed = {number: line[2:], **({table: tables[table]} if table is not None else {})}
            (tmp_path / "plan.toml").write_text("\n".join(changed.get(at, text) for at, text in enumerate(lines)))
            assert open_plan(tmp_path / "plan.toml")
            tried += 1
        assert tried > 30

    def test_amounts_follow_the_data_and_the_machine(self):
        assert sum(choose_epochs(100)) > sum(choose_epochs(3000)) > sum(choose_epochs(100_000))
        assert choose_batch(640, 10_000, 64 * GIB, "yolo11n.yaml") == draft_plan.MAX_BATCH
        assert choose_batch(640, 10_000, 4 * GIB, "yolo11n.yaml") == 8
        assert choose_batch(640, 10_000, 4 * GIB, "yolo11x.pt") == 2
        assert choose_batch(640, 9, 64 * GIB, "yolo11n.yaml") == 2

    def test_settings_are_such_as_ultralytics_takes(self, tmp_path):
        """Its own check, in its own process, on each stage as it would be started."""
        data = data_set.read(make_data_set(tmp_path))
        for accelerator in ("mps", "cuda", None):
            text = draft(data, MachineInfo(16 * GIB, 8, accelerator), model="yolo11n.yaml", data_path="data.yaml")
            (tmp_path / f"{accelerator}.toml").write_text(text)
        plans = [open_plan(path) for path in tmp_path.glob("*.toml")]
        stages = [{**plan.settings, **stage.settings} for plan in plans for stage in plan.stages]
        program = (
            "import json, sys; from ultralytics.cfg import get_cfg\nfor s in json.load(sys.stdin): get_cfg(overrides=s)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], input=json.dumps(stages), capture_output=True, text=True, check=False
        )
        assert len(stages) == 6
        assert done.returncode == 0, done.stderr


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(app, ["init", *arguments], catch_exceptions=False)

    def test_finds_the_data_set_and_writes_a_plan(self, tmp_path):
        make_data_set(tmp_path)
        (tmp_path / "other.yaml").write_text("a: 1")
        shown = self.run()
        assert shown.exit_code == 0
        assert "6 train, 2 val" in shown.output
        assert "holdfast run plan.toml" in shown.output
        assert open_plan(tmp_path / "plan.toml").settings["data"] == "data.yaml"

    def test_data_that_lies_elsewhere(self, tmp_path):
        """Then its whole path is written; one below stays relative, so that both can be moved."""
        make_data_set(tmp_path / "sets")
        (tmp_path / "plans").mkdir()
        assert self.run("sets/data.yaml", "--out", "plans/p.toml").exit_code == 0
        assert open_plan(Path("plans/p.toml")).settings["data"] == str(tmp_path / "sets/data.yaml")
        assert self.run("sets/data.yaml", "--out", "p.toml").exit_code == 0
        assert open_plan(Path("p.toml")).settings["data"] == "sets/data.yaml"

    def test_same_as_json(self, tmp_path):
        """With what must be mended before it can run."""
        make_data_set(tmp_path, label="9 0.5 0.5 0.1 0.1")
        said = json.loads(self.run("--json", "--model", "yolo11s.yaml").output)
        assert said["plan"] == "plan.toml"
        assert said["images"] == {"train": 6, "val": 2}
        assert ["class 9" in problem for problem in said["problems"]] == [True, True]
        assert open_plan(tmp_path / "plan.toml").settings["model"] == "yolo11s.yaml"

    def test_never_writes_over_a_plan_unasked(self, tmp_path):
        make_data_set(tmp_path)
        (tmp_path / "plan.toml").write_text("mine")
        with pytest.raises(UsageError, match="already exists"):
            self.run()
        assert (tmp_path / "plan.toml").read_text() == "mine"
        assert self.run("--force").exit_code == 0
        assert "trainer" in (tmp_path / "plan.toml").read_text()

    def test_asks_for_a_name_where_there_is_none_or_several(self, tmp_path):
        with pytest.raises(DataSetInvalid, match="no dataset") as caught:
            self.run()
        assert "holdfast init" in caught.value.next_step
        shutil.copy(make_data_set(tmp_path), tmp_path / "more.yaml")
        with pytest.raises(UsageError, match=r"data\.yaml, more\.yaml") as caught:
            self.run()
        assert caught.value.next_step == "specify one of them: holdfast init data.yaml"
        with pytest.raises(DataSetInvalid):
            self.run("nothing.yaml")
        assert not (tmp_path / "plan.toml").exists()

    def test_nothing_heavy_is_imported_for_help(self):
        program = "import sys, holdfast.cli.app; print([m for m in ('yaml', 'torch', 'psutil') if m in sys.modules])"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
