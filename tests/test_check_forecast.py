"""What a plan will take, from one short trial: memory, time, disk; and settings beside a command."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from data_sets import described, drawn, save

from holdfast.frameworks.ultralytics import forecast_trial
from holdfast.frameworks.ultralytics.checks import forecast_memory
from holdfast.frameworks.ultralytics.checks.forecast_disk import estimate_written
from holdfast.frameworks.ultralytics.checks.forecast_memory import recorded
from holdfast.frameworks.ultralytics.cost_estimate import (
    ImageCounts,
    estimate_memory,
    estimate_times,
    find_largest_stage,
    sum_times,
)
from holdfast.frameworks.ultralytics.forecast_trial import ShortRun, count_images
from holdfast.frameworks.ultralytics.short_run import Measurement
from holdfast.frameworks.ultralytics.short_run_metrics import ShortRunTiming
from holdfast.preflight.case_contexts import RecordedMachine, linux
from holdfast.preflight.checks import check, forecast_pace
from holdfast.preflight.checks.check import Answer, finding
from holdfast.preflight.checks.context import build_context
from holdfast.preflight.checks.runner import run_all, select_checks
from holdfast.preflight.validate_plan import validate
from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan import Plan, Stage, Validation
from holdfast.schema.units import GIB
from holdfast.storage.plan.load import read
from holdfast.supervisor.child_env import overrides_for

FORECASTS = select_checks(["forecast"], ["forecast-pace"])
PACE = ShortRunTiming(start=10.0, batch=2.0, closed=1.0, validation=4.0, saving=0.5, after=7.0)
ONE = Measurement(16, 320, training=2 * GIB, validation=GIB, wall=PACE, images=128, validated=40, closes=True)


def planned(stages=(), validation=None, **settings):
    over = {"model": "yolo11n.yaml", "data": "data.yaml", "imgsz": 320, "batch": 16, **settings}
    return Plan(
        cwd="/", trainer="ultralytics", settings=over, stages=list(stages), validation=validation or Validation()
    )


# --- time -------------------------------------------------------------------------------------------------------------


def test_time_is_the_sum_of_its_parts():
    """20 epochs of 10 batches, the last ten without mosaic; 80 images to validate are twice as many as were tried."""
    (stage,) = estimate_times(planned(epochs=20), ONE, [ImageCounts(160, 80)])
    trained = 10 * 10 * 2.0 + 10 * 10 * 1.0
    listed = 0.0007 * (160 + 80 - 128 - 40)
    assert stage.total.expected == pytest.approx(10.0 + trained + 20 * (8.0 + 0.5) + 7.0 + 4.0 + listed)
    assert stage.epoch.expected == pytest.approx(trained / 20 + 8.0 + 0.5)
    assert stage.total.low < stage.total.expected < stage.total.high


@pytest.mark.parametrize(
    ("settings", "every", "validations"), [({}, 1, 20), ({}, 5, 4), ({}, 7, 3), ({"val": False}, 1, 1)]
)
def test_validations_are_counted_as_planned(settings, every, validations):
    """The last epoch is validated whatever the plan says."""
    counted = [ImageCounts(160, 40)]
    several = estimate_times(planned(epochs=20, validation=Validation(every=every), **settings), ONE, counted)
    none = estimate_times(planned(epochs=20), ONE, [ImageCounts(160, 0)])
    parts = several[0].total.expected - none[0].total.expected
    assert parts == pytest.approx(validations * 4.0 + 4.0, abs=0.1)


def test_stages_that_were_not_tried_are_reckoned_by_pixels():
    stages = [Stage(name="small", settings={"imgsz": 160, "epochs": 10}), Stage(name="large", settings={"epochs": 10})]
    plan = planned(stages)
    assert find_largest_stage(plan) == 1
    small, large = estimate_times(plan, ONE, [ImageCounts(160, 40)] * 2)
    assert (small.scaled, large.scaled) == (True, False)
    assert small.epoch.expected == pytest.approx((large.epoch.expected - 0.5) / 4 + 0.5)
    assert small.total.high / small.total.expected > large.total.high / large.total.expected
    assert sum_times([small, large]).expected == small.total.expected + large.total.expected


def test_last_batch_that_is_not_full_takes_less():
    full, less = (estimate_times(planned(epochs=1), ONE, [ImageCounts(n, 40)])[0] for n in (160, 152))
    assert (full.batches, less.batches) == (10, 10)
    assert less.epoch.expected < full.epoch.expected


# --- memory and disk --------------------------------------------------------------------------------------------------


def test_each_loader_keeps_images_for_mosaic():
    """Eight batches of images each: two workers had seen half of theirs when the trial ended."""
    alone, of_two = (
        estimate_memory(
            Measurement(16, 320, training=GIB, validation=GIB, images=128, workers=n), {}, ImageCounts(1000, 100)
        )
        for n in (0, 2)
    )
    assert alone.more == {}
    assert of_two.more["images kept for mosaic"] == 2 * 64 * int(3 * 0.8 * 320 * 320)


def test_cached_images_are_counted():
    cached = estimate_memory(ONE, {"cache": "ram"}, ImageCounts(10_128, 40))
    assert cached.more["all images, because of cache"] == 10_000 * int(3 * 0.8 * 320 * 320)
    assert cached.peak.expected > 2 * GIB + 2 * 10**9


def test_files_that_are_kept_are_counted():
    found = recorded(save_period=5)
    assert estimate_written(found)["20 files by save_period"] == 20 * found.measured.checkpoint
    assert estimate_written(found)["snapshots"] == 4 * found.measured.snapshot


@pytest.mark.parametrize(
    ("fraction", "counts"), [(1.0, (10, 4)), (0.5, (5, 4)), (3, (3, 4)), ([0.2, 0.5], (2, 2)), (1, (10, 4))]
)
def test_fraction_of_the_images(fraction, counts):
    data = SimpleNamespace(splits={"train": list(range(10)), "val": list(range(4))})

    assert count_images({"data": "d", "fraction": fraction}, {"d": data}) == ImageCounts(*counts)


# --- the checks -------------------------------------------------------------------------------------------------------


def test_one_trial_serves_all_forecasts(tmp_path, monkeypatch):
    """Of a plan with two stages the larger is tried, once."""
    for n in range(6):
        save(tmp_path, "train" if n < 4 else "val", f"{n}.jpg", drawn(n, size=(64, 48)))
    data = str(described(tmp_path))
    tried = []

    def trial(stage, **given):
        tried.append((stage.settings["imgsz"], given.get("device")))
        return ONE

    monkeypatch.setattr(forecast_trial, "measure", trial)
    forecast_trial.clear()
    stages = [Stage(name="small", settings={"imgsz": 160}), Stage(name="large")]
    context = linux(plan=planned(stages, data=data, epochs=50), cwd=tmp_path, device="cpu")
    results = {result.check.id: result for result in run_all(FORECASTS, context)}
    assert {name: result.status for name, result in results.items()} == {
        "forecast-disk": "passed",
        "forecast-memory": "passed",
        "forecast-time": "passed",
    }
    assert tried == [(320, "cpu")]
    assert "small: 50 epochs of 1 batches" in results["forecast-time"].message
    assert "extrapolated from a different stage" in results["forecast-time"].message


def test_training_that_is_hardly_longer_than_a_trial_is_not_tried(tmp_path, monkeypatch):
    save(tmp_path, "train", "1.jpg", drawn(1, size=(64, 48)))
    save(tmp_path, "val", "2.jpg", drawn(2, size=(64, 48)))
    monkeypatch.setattr(forecast_trial, "measure", None)
    context = linux(plan=planned(data=str(described(tmp_path)), epochs=79), cwd=tmp_path)
    assert {result.message for result in run_all(FORECASTS, context)} == {
        "the whole run has only 79 batches, which take little longer than a short run"
    }


def test_what_is_no_training_of_ultralytics_is_left_to_the_pace():
    plan = Plan(cwd="/", command=["python", "train.py"])
    assert {result.message for result in run_all(FORECASTS, linux(plan=plan))} == {
        "this is not an Ultralytics command or plan: see forecast-pace"
    }


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (
            "yolo detect train model=yolo11n.yaml data=d.yaml imgsz=320 amp=False lr0=1e-3",
            {"model": "yolo11n.yaml", "data": "d.yaml", "imgsz": 320, "amp": False, "lr0": 1e-3, "task": "detect"},
        ),
        ("/venv/bin/yolo segment train model=a.pt data=d.yaml", {"model": "a.pt", "data": "d.yaml", "task": "segment"}),
        ("python -m ultralytics mode=train model=a data=d", {"model": "a", "data": "d", "task": "detect"}),
        ("yolo train model=yolo11n-seg.yaml data=d", {"model": "yolo11n-seg.yaml", "data": "d", "task": "segment"}),
        ("yolo detect val model=a.pt data=d.yaml", None),
        ("yolo detect train resume=True model=runs/last.pt data=d.yaml", None),
        ("yolo detect train save_dir=runs/train model=a.pt data=d.yaml", None),
        ("yolo detect train data=d.yaml", None),
        ("python train.py model=a data=d", None),
    ],
)
def test_a_command_of_ultralytics_is_a_plan_of_one_stage(command, settings):
    plan = forecast_trial.get_ultralytics_plan(linux(command=tuple(command.split())))
    assert (None if plan is None else plan.settings) == settings
    assert plan is None or plan.python == linux().interpreter.executable


TRAINS = """
import torch
loader = torch.utils.data.DataLoader(torch.randn(800, 4), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100000):
    for n, batch in enumerate(loader, 1):
        model(batch).square().mean().backward()
        if n % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_pace_of_a_plain_loop(tmp_path, monkeypatch):
    """It is run as it is, in a scratch: two batches a step, a hundred a pass. Nothing of it is left."""
    monkeypatch.setattr(forecast_pace, "WATCHED_S", 3.0)  # and until it has made enough steps
    (tmp_path / "train.py").write_text(TRAINS)
    context, asker = build_context(command=[sys.executable, str(tmp_path / "train.py")], environment=dict(os.environ))
    (result,) = run_all(select_checks(["forecast-pace"]), replace(context, cwd=tmp_path), seconds=60.0)
    asker.close()
    assert result.status == "passed", result.message
    assert "an epoch has 100 batches" in result.message
    assert "ms (" in result.message
    assert re.search(r"peak memory is \d+ MiB; [\d.]+ GiB is available now, of", result.message)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_where_something_is_fatal_nothing_is_foretold():
    """What is wrong comes first; the trial would only cost time."""
    wrong = replace(FORECASTS[0], id="made-up", kind="data", run=lambda _: Answer("", (finding("fatal", "x"),)))
    results = list(run_all([wrong, *FORECASTS], linux(short_run=recorded(), plan=planned())))
    assert [result.status for result in results] == ["fatal", *["not checked"] * 3]
    assert results[1].message == "made-up found a fatal problem: fix that first, and check again"


def test_what_would_fit_is_told(monkeypatch):
    """16 images of 640 px do not fit; further trials say what would."""

    def trial(plan, *, batch, imgsz, **_):
        return Measurement(batch, imgsz, training=int(GIB + 600 * batch * imgsz * imgsz))

    monkeypatch.setattr(forecast_memory, "measure", trial)
    monkeypatch.setattr("holdfast.frameworks.ultralytics.batch_finder.get_memory_limit", lambda _: 3 * GIB)
    found = recorded(peak=1 + 600 * 16 * 640 * 640 / GIB)
    context = linux(machine=RecordedMachine(available=3 * GIB), deadline=lambda: 300.0)
    remedies = forecast_memory._remedies(context, found)
    assert remedies == ["batch = 4 would fit at 640 px", "imgsz = 416 would fit with batch 16"]
    short = linux(machine=RecordedMachine(available=3 * GIB), deadline=lambda: 10.0)
    assert (
        remedies
        != forecast_memory._remedies(short, found)
        == ["run `holdfast fit PLAN.toml` to find the largest batch and image size that fit"]
    )


def test_trial_that_did_not_come_to_validate_says_so():
    found = recorded()
    cut = ShortRun(
        found.plan, found.plan, Measurement(16, 640, training=GIB, wall=ShortRunTiming(batch=1.0)), found.counted
    )
    (result,) = run_all(select_checks(["forecast-time"]), linux(short_run=cut, plan=found.plan))
    assert "did not reach validation" in result.message


def test_forecasts_stand_last():
    """They take longest, and what the others find makes them idle."""
    kinds = [check.kind for check in select_checks()]
    assert kinds[-len(FORECASTS) :] == ["forecast"] * len(FORECASTS)
    assert check.KINDS[-1] == "forecast"


# --- settings beside a command ----------------------------------------------------------------------------------------


def written_plan(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_settings_beside_a_command_reach_the_training(tmp_path):
    """They are set from outside, under what remedies have changed; Holdfast's own command already has them."""
    plan = read(written_plan(tmp_path, 'command = "python train.py"\n[settings]\nbatch = 8\ndevice = "auto"\n'))
    assert overrides_for(plan) == {"settings": {"batch": 8}}
    changed = Plan(cwd="/", command=["yolo"], settings={"batch": 8, "imgsz": 320}, overrides={"batch": 4})
    assert overrides_for(changed)["settings"] == {"batch": 4, "imgsz": 320}
    assert overrides_for(Plan(cwd="/", command=["yolo"], settings={"device": 0})) == {"settings": {"device": 0}}
    assert overrides_for(planned()) == {}


def test_model_of_a_command_is_its_own_to_name(tmp_path):
    with pytest.raises(PlanInvalid) as error:
        read(written_plan(tmp_path, 'command = "yolo train"\n[settings]\nbatch = 8\nmodel = "yolo11n.yaml"\n'))
    assert "line 4: settings.model is set by the command itself" in error.value.what


@pytest.mark.parametrize(("script", "notes"), [("import torch", 1), ("from ultralytics import YOLO", 0), ("", 1)])
def test_settings_that_nobody_hears_are_noted(tmp_path, script, notes):
    (tmp_path / "train.py").write_text(script)
    plan = read(written_plan(tmp_path, 'command = "python train.py"\n[settings]\nbatch = 8\n'))
    assert sum("do nothing" in note for note in validate(plan).notes) == notes
