"""What a YOLO11n training that goes on is given back, and what it is not: settings changed, files that cannot be written, copies gone."""

from __future__ import annotations

import errno
import importlib.util
import os
from pathlib import Path

import pytest
import torch
from squares import make_squares
from yolo_attempts import Lives, backbone, import_ultralytics

from holdfast.probe.holdfast_probe.snapshots.stateful import StatefulObjects
from holdfast.probe.holdfast_probe.snapshots.store import Store

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ultralytics") is None, reason="Ultralytics is not installed")
IMAGES, BATCHES, EPOCHS = 22, 6, 2


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory):
    """Once, before all forks."""
    return import_ultralytics(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """What comes out of Ultralytics as it is."""
    return Lives(make_squares(tmp_path_factory.mktemp("bare"), IMAGES), bare=True, epochs=EPOCHS).to_the_end()


def killed(folder, at=8, images=IMAGES, **options):
    """A training that died in its second epoch."""
    training = Lives(make_squares(folder, images), **{"epochs": EPOCHS, **options})
    assert training.live(("after a batch", at)) is None
    return training


def last_pt(training):
    return training.folder / "runs" / "life" / "weights" / "last.pt"


def notes(training):
    return [fields["what"] for event, fields in training.told if event == "probe-note"]


def refuse(monkeypatch, *, beginning):
    """A full disk for files whose names begin so: each is written under another name first, then renamed."""
    replace = os.replace

    def replaced(path, to):
        if Path(to).name.startswith(beginning):
            raise OSError(errno.ENOSPC, "No space left on device", str(to))
        replace(path, to)

    monkeypatch.setattr(os, "replace", replaced)


def test_layers_frozen_from_now_on(tmp_path):
    """They stay as they were at the snapshot, gradients half accumulated and moments or not; the others are trained."""
    training = killed(tmp_path, at=9)
    then = Store(str(tmp_path / "snapshots")).read_newest(torch).state["trainer"]["objects"]["model"]
    assert then["gradients"]
    out = training.live(None, freeze=10)
    from_the_start = Lives(make_squares(tmp_path / "bare", IMAGES), bare=True, epochs=1, freeze=10).to_the_end()
    assert out["frozen"] == from_the_start["frozen"]
    assert out["backbone"] == backbone(then["state"])
    assert training.exact == [False]


def test_layers_trained_from_now_on(tmp_path, bare):
    """The other way round: what was frozen has no moments yet."""
    training = killed(tmp_path, freeze=10)
    then = Store(str(tmp_path / "snapshots")).read_newest(torch).state["trainer"]["objects"]["model"]
    assert len(then["frozen"]) > 1
    out = training.live(None, freeze=None)
    assert out["frozen"] == bare["frozen"]
    assert out["backbone"] != backbone(then["state"])


def test_what_has_no_effect_any_more_is_said(tmp_path, bare):
    training = killed(tmp_path)
    out = training.live(None, seed=4)
    assert out == bare
    assert "these settings have no effect on a resumed training: seed" in notes(training)


def test_rows_of_results_outlive_a_restart_that_dies(tmp_path, bare):
    """Ultralytics removes the file as a trainer is made; nobody may go on after that."""
    training = killed(tmp_path)
    rows = tmp_path / "runs" / "life" / "results.csv"
    before = rows.read_text()
    assert training.live(("after its set-up", 0)) is None
    assert rows.read_text() == before
    assert training.live(None) == bare


def test_a_image_that_is_gone(tmp_path):
    """As many batches as before, of other images: the buffer for mosaics would name one that is not there."""
    training = killed(tmp_path, images=IMAGES + 2)
    (tmp_path / "images" / f"{IMAGES + 1}.png").unlink()
    assert training.live(None) is not None
    assert training.exact == [False]


def test_a_full_disk_keeps_last_pt_as_it_is(tmp_path, bare, monkeypatch):
    """Only a NaN would ever read it. The training goes on, and it is said."""
    training = killed(tmp_path)
    refuse(monkeypatch, beginning="last.pt")
    assert training.live(None) == bare
    assert "last.pt could not be restored to what it was at the snapshot" in notes(training)


def test_a_full_disk_takes_rows_of_results_csv(tmp_path, bare, monkeypatch):
    training = killed(tmp_path)
    refuse(monkeypatch, beginning="results.csv")
    out = training.live(None)
    assert {name for name in bare if out[name] != bare[name]} == {"csv"}
    assert "the rows of results.csv could not be restored" in notes(training)


def test_a_state_that_cannot_be_given_back_ends_it(tmp_path, bare, monkeypatch):
    """In words, with no batch trained on half of a state, and with all files left for another try."""
    training = killed(tmp_path)
    saved, rows = last_pt(training).read_bytes(), (tmp_path / "runs" / "life" / "results.csv").read_bytes()
    with monkeypatch.context() as patched:

        def fails(objects, states):
            objects.parts["model"].load_state_dict(states["model"]["state"])
            raise ValueError("optimizer cannot be restored: it is too large")

        patched.setattr(StatefulObjects, "restore", fails)
        with pytest.raises(AssertionError, match=r"CannotResume: .*optimizer cannot be restored.*last\.pt"):
            training.live(None)
    assert training.restored == []
    assert last_pt(training).read_bytes() == saved
    assert (tmp_path / "runs" / "life" / "results.csv").read_bytes() == rows
    assert training.to_the_end() == bare


def test_last_pt_is_the_snapshots_however_many_were_saved_since(tmp_path):
    """After a NaN Ultralytics goes back to that file: it is not to be one of an epoch that is still to come."""
    whole = Lives(make_squares(tmp_path / "whole", IMAGES), bare=True, nan_at=9).to_the_end()
    training = killed(tmp_path / "killed", nan_at=9, epochs=4)
    later = Lives(training.folder, nan_at=9, most_lost=3600.0)
    assert later.live(("in a backward", 3 * BATCHES + 2)) is None  # two epochs later, and no snapshot of them
    assert training.to_the_end() == whole
    assert later.restored == training.restored


def test_without_a_copy_of_last_pt_it_is_said_whose_it_is(tmp_path, bare, monkeypatch):
    """Where the file is still the one of then, there is nothing to say."""
    training = killed(tmp_path, at=BATCHES + 1)
    copy = tmp_path / "snapshots" / "last-000000.pt"
    copy.unlink()
    assert training.live(("after a batch", BATCHES + 2)) is None
    assert notes(training) == []
    last_pt(training).write_bytes(b"torn")
    assert training.live(None) == bare
    assert "last.pt could not be restored to what it was at the snapshot" in notes(training)
