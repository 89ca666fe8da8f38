"""Short trials, what is made of their journals, what fits by them, and which device they choose."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from data_sets import described, drawn, save
from running import environment

from holdfast.frameworks.base import DeviceChoice
from holdfast.frameworks.ultralytics import batch_finder, device_selection
from holdfast.frameworks.ultralytics.batch_finder import ROOM, Answer, find_what_fits, fit_line, fits
from holdfast.frameworks.ultralytics.device_selection import (
    CANARIES,
    CANARY_RUNNER,
    Candidate,
    choose,
    find_fault,
    needs_selection,
    order_devices,
    rank,
)
from holdfast.frameworks.ultralytics.short_run import Measurement, _ran_out_of_memory, make_request, measure
from holdfast.frameworks.ultralytics.short_run_metrics import ShortRunTiming, compute_metrics
from holdfast.frameworks.ultralytics.show_fit import as_values, print_answer
from holdfast.preflight.checks.interpreter import PythonClient, Reply
from holdfast.schema import events
from holdfast.schema.plan import Plan, Policy, Stage
from holdfast.schema.verdicts import Finding
from holdfast.supervisor.stage_command import stage_plan
from holdfast.testing.histories import ended

GIB = 1 << 30


def planned(**settings):
    over = {"model": "yolo11n.yaml", "data": "data.yaml", "imgsz": 640, "batch": 16, **settings}
    return Plan(cwd="/", trainer="ultralytics", settings=over)


# --- from a journal to figures ----------------------------------------------------------------------------------------


def life(*, batches=8, epochs=2, batch_s=1.0, later_s=None, warm_up_s=4.0, validation_s=3.0, others=0.0, cut=False):
    """The events of a training: a start of 10 s, epochs, validations, saves of half a second, an end of 6 s.

    `others`: the part of each second that other programs compute instead.
    """
    told = [events.AttemptStarted(at=100.0, attempt=1, pid=7, command=["yolo"])]
    now, step = 110.0, 0
    for epoch in range(epochs):
        began = now
        for _ in range(batches):
            step += 1
            each = later_s if later_s is not None and epoch else batch_s
            now += each + (warm_up_s if step == 1 else 0.0)
            told.append(events.Step(at=now, step=step, seconds=each))
        told.append(events.Epoch(at=now, epoch=epoch + 1, step=step, seconds=now - began, batches=batches, source="x"))
        now += validation_s
        told.append(events.Saved(at=now, step=step, path="last.pt", bytes=26_000_000))
        now += 0.5
    if not cut:
        told.append(events.AttemptEnded(at=now + 6.0, attempt=1, code=0, last_step=step, seconds=1.0))
    ends = [event.at for event in told if isinstance(event, events.Epoch)]
    for tenth in range(1000, int(10 * told[-1].at) + 1):
        at = tenth / 10
        validates = any(end <= at <= end + validation_s for end in ends)
        told.append(
            events.Sample(
                at=at,
                rss=(3 if validates else 2) * GIB,
                processes=1,
                available=8 * GIB,
                swap=0,
                disk_free=GIB,
                cpu=(1 - others) * (at - 100),
            )
        )
    return told


def test_parts_of_a_training_are_told_apart():
    """The first batch's extra belongs to the start; a validation ends where the checkpoint is saved."""
    pace = compute_metrics(life()).wall
    assert (pace.start, pace.batch, pace.validation, pace.saving) == pytest.approx((14.0, 1.0, 3.0, 0.5))
    assert pace.after == pytest.approx(6.5)


def test_one_slow_batch_is_not_the_typical_one():
    told = life()
    shifted = [
        event
        if not isinstance(event, events.Step) or event.step != 5
        else events.Step(at=event.at + 0.9, step=5, seconds=1.9)
        for event in told
    ]
    assert compute_metrics(shifted).wall.batch == pytest.approx(1.0, abs=0.05)


def test_epochs_without_mosaic_have_a_time_of_their_own():
    assert compute_metrics(life(later_s=0.5), alike=False).wall.closed == pytest.approx(0.5)
    assert compute_metrics(life(later_s=0.5), alike=False).wall.batch == pytest.approx(1.0)


def test_processors_tell_the_same_beside_other_programs():
    """Half of every second was another's: the wall clock says 1 s a batch, and half a second was computed."""
    found = compute_metrics(life(others=0.5))
    assert found.wall.batch == pytest.approx(1.0)
    assert found.processor.batch == pytest.approx(0.5, rel=0.05)


def test_memory_of_training_and_validation_are_apart():
    found = compute_metrics(life())
    assert (found.training, found.validation, found.checkpoint) == (2 * GIB, 3 * GIB, 26_000_000)


def test_trial_that_was_cut_short_still_tells_of_its_batches():
    """Ended in its first epoch: batches are known, validation is not."""
    told = [event for event in life(epochs=1, cut=True) if not isinstance(event, (events.Epoch, events.Saved))]
    pace = compute_metrics(told).wall
    assert (pace.batch, pace.validation, pace.after) == pytest.approx((1.0, 0.0, 0.0))


def test_no_step_no_figures():
    assert compute_metrics([event for event in life() if not isinstance(event, events.Step)]) is None


@pytest.mark.parametrize(
    ("settings", "with_mosaic", "closes"),
    [
        ({"epochs": 100}, 90, True),
        ({"epochs": 3}, 0, False),
        ({"epochs": 5, "close_mosaic": 0}, 5, False),
        ({"batch": -1, "imgsz": [320, 640]}, 90, True),
    ],
)
def test_mosaic_is_closed_as_ultralytics_does(settings, with_mosaic, closes):
    asked = make_request(settings)
    assert (asked.with_mosaic, asked.closes) == (with_mosaic, closes)
    assert (asked.batch, asked.size) == (16, 640)


@pytest.mark.parametrize(
    ("end", "rules", "out_of_memory"),
    [
        ({"code": 1}, ["device-out-of-memory"], True),
        ({"code": None, "signal": "SIGKILL"}, ["killed-externally"], True),
        ({"code": -6, "words": ["what():  std::bad_alloc"]}, [], True),
        ({"code": 1, "words": ["ValueError: names out of memory"]}, ["python-exception"], False),
    ],
)
def test_running_out_of_memory_is_a_typed_reason(end, rules, out_of_memory):
    """The rules and the exit say it, not the text of the failure."""
    history = [*ended(**end), *(events.FindingMade(at=9.0, finding=found(rule)) for rule in rules)]
    assert _ran_out_of_memory(history[0], history) is out_of_memory


def found(rule):
    return Finding(rule=rule, severity="fatal", message="m")


# --- what fits --------------------------------------------------------------------------------------------------------


def made_of(base, each, *, dies_above=None, mosaic_costs=0.0):
    """A trial of a machine whose memory follows a line; above `dies_above` bytes it is killed."""
    tried = []

    def trial(plan, *, batch=None, imgsz=None, mosaic=1.0, **_):
        batch, imgsz = batch or plan.settings["batch"], imgsz or plan.settings["imgsz"]
        tried.append((batch, imgsz, mosaic))
        peak = base + each * batch * imgsz * imgsz + (mosaic_costs if mosaic else 0.0)
        if dies_above is not None and peak > dies_above:
            return Measurement(batch, imgsz, failed="it was killed by SIGKILL")
        return Measurement(
            batch, imgsz, training=int(peak), wall=ShortRunTiming(batch=0.1 * batch), images=batch, validated=1
        )

    trial.tried = tried
    return trial


@pytest.fixture
def with_memory(monkeypatch):
    def of(gib):
        monkeypatch.setattr(batch_finder, "get_memory_limit", lambda _: int(gib * GIB))

    return of


def test_what_fits_keeps_the_plans_own_where_it_does(with_memory):
    with_memory(16)
    answer = find_what_fits(planned(), trial=made_of(GIB, 1000.0))
    assert isinstance(answer, Answer)
    assert (answer.recommended.batch, answer.recommended.size) == (16, 640)
    assert answer.largest_batch(640) == 32
    assert answer.peak(32, 640) == pytest.approx(GIB + 1000.0 * 32 * 640 * 640, rel=0.01)


def test_what_is_recommended_was_tried_and_holds(with_memory):
    """16 images are too many: the smaller batch that is named was tried itself, at the plan's own size."""
    with_memory(6)
    trial = made_of(GIB, 1000.0, dies_above=6 * GIB)
    answer = find_what_fits(planned(), trial=trial)
    best = answer.recommended
    assert (best.batch, best.size) == (8, 640)
    assert best.peak * (1 + ROOM) <= 6 * GIB
    assert (8, 640, 1.0) in trial.tried
    assert (16, 640, "it was killed by SIGKILL") in answer.too_large


def test_smaller_images_where_no_batch_fits(with_memory):
    with_memory(1.4)
    answer = find_what_fits(planned(), trial=made_of(GIB, 1000.0))
    assert answer.recommended.batch == 1
    assert answer.recommended.size < 640


def test_nothing_fits(with_memory, capsys):
    with_memory(0.5)
    answer = find_what_fits(planned(), trial=made_of(GIB, 1000.0))
    assert answer.recommended is None
    assert print_answer(answer, as_json=False) == 3
    assert "even a batch of 1 does not fit" in capsys.readouterr().out


def test_what_mosaic_costs_is_told(with_memory, capsys):
    with_memory(16)
    answer = find_what_fits(planned(), trial=made_of(GIB, 100.0, mosaic_costs=GIB / 4))
    assert answer.without_mosaic is not None
    assert print_answer(answer, as_json=False) == 0
    assert "without mosaic, batch 4 at 384 px: 256 MiB less memory" in capsys.readouterr().out


def test_trial_that_does_not_run_at_all_is_a_sentence(with_memory, capsys):
    with_memory(16)
    answer = find_what_fits(planned(), trial=made_of(GIB, 1000.0, dies_above=0))
    assert print_answer(answer, as_json=True) == 3
    assert "failed" in json.loads(capsys.readouterr().out)["error"]


def test_answer_as_json(with_memory):
    with_memory(16)
    told = as_values(find_what_fits(planned(), trial=made_of(GIB, 1000.0)))
    assert told["recommended"] == {"batch": 16, "imgsz": 640, "peak": told["recommended"]["peak"]}
    assert (told["fits"][3]["imgsz"], told["fits"][3]["largest_batch"]) == (512, 32)
    json.dumps(told)


def test_device_with_memory_of_its_own_is_what_runs_out():
    """The GPU's memory counts, not the machine's."""
    one = Measurement(16, 640, training=2 * GIB, device=("cuda:0", 7 * GIB, 8 * GIB))
    assert fits(planned(), trial=lambda _: one) == (True, fits(planned(), trial=lambda _: one)[1])
    assert not fits(planned(), trial=lambda _: replace(one, device=("cuda:0", int(7.8 * GIB), 8 * GIB)))[0]
    assert "the memory of cuda:0" in fits(planned(), trial=lambda _: one)[1]


def test_noise_never_promises_what_was_measured_away():
    points = [Measurement(4, 640, training=3 * GIB), Measurement(16, 640, training=2 * GIB)]
    base, each = fit_line(points)
    assert each == 0.0
    assert base == 3 * GIB


# --- the fastest device that told the truth ---------------------------------------------------------------------------


def canaried(device, *wrong):
    results = [{"id": "F04", "canary": "boolean_counts", "about": "", "wrong": None}]
    results += [
        {"id": name, "canary": "scalar_writes", "about": "", "wrong": "zeros(3) gives [0, 3, 3]"} for name in wrong
    ]
    return Reply(({"trying": device}, {"device": device, "results": results}))


def test_fastest_is_chosen_and_the_others_are_told_why():
    choice = rank(
        [Candidate("cuda:0", batch_s=0.1), Candidate("mps", "torch does not see it"), Candidate("cpu", batch_s=3.2)]
    )
    assert choice.device == "0"
    assert choice.message == [
        "cuda:0: the fastest, 100 ms per batch",
        "cpu: slower, 3.2 s per batch",
        "mps: torch does not see it",
    ]


def test_device_that_lies_is_named_with_its_signature():
    problem = find_fault(canaried("mps", "F01"), "mps")
    assert problem.startswith("it gets scalar writes wrong (F01): zeros(3) gives")
    assert rank([Candidate("mps", problem), Candidate("cpu")]).device == "cpu"
    assert find_fault(canaried("mps"), "mps") == ""
    assert "SIGABRT" in find_fault(Reply(({"trying": "mps"},), -6), "mps")


def test_canaries_are_run_by_the_trainings_own_python(tmp_path):
    """As a program of its own; a device that is not there is no honest one."""
    asker = PythonClient([sys.executable], tmp_path, environment())
    reply = asker(CANARY_RUNNER, ["cpu", "nowhere"], CANARIES.read_text(), 60.0)
    assert find_fault(reply, "cpu") == ""
    assert "nowhere" in find_fault(reply, "nowhere")


def test_none_can_be_trusted():
    assert rank([Candidate("mps", "it lies"), Candidate("cpu", "a short run failed")]).device is None


def test_devices_are_tried_in_the_order_of_the_policy():
    assert order_devices(["mps", "cpu"], ["cuda:0", "cuda:1", "cpu"]) == (
        ["cpu"],
        [Candidate("mps", "torch does not see it")],
    )
    assert order_devices([], ["mps", "cpu"]) == (["mps", "cpu"], [])
    assert order_devices([], ["cuda:0", "cuda:1", "cpu"])[0] == ["cuda:0", "cpu"]
    assert order_devices(["cpu", "1"], ["cuda:0", "cuda:1", "cpu"])[0] == ["cpu", "cuda:1"]
    assert order_devices(["cuda", "cpu"], ["cuda:0", "cpu"])[0] == ["cuda:0", "cpu"]


def test_auto_is_asked_for_only_where_no_device_is_named():
    assert needs_selection(planned())
    assert needs_selection(planned(device="auto"))
    assert not needs_selection(planned(device=0))
    stage = Stage(name="a", settings={"device": "mps"})
    assert not needs_selection(Plan(cwd="/", trainer="ultralytics", settings={"data": "d"}, stages=[stage]))


class Sees:
    """A ground whose interpreter has these devices, of which some lie."""

    def __init__(self, devices, lies=()):
        self._devices, self._lies = devices, lies

    def __call__(self, **_):
        from holdfast.preflight.case_contexts import mac
        from holdfast.preflight.checks.interpreter import Torch

        facts = {"torch": Torch(version="2.14.0", devices=self._devices)}
        context = replace(mac(facts=facts), run_python=lambda _p, arguments, *_: canaried(arguments[0], *self._lies))
        return context, None


def chosen(monkeypatch, devices, *, lies=(), seconds=None, plan=None):
    monkeypatch.setattr(device_selection, "build_context", Sees(devices, lies))
    tried = []

    def trial(stage, *, device, **_):
        tried.append(device)
        found = (seconds or {})[device]
        return Measurement(16, 640, **found if isinstance(found, dict) else {"wall": ShortRunTiming(batch=found)})

    return choose(plan or planned(), trial=trial), tried


def test_only_a_cpu_is_taken_at_once(monkeypatch):
    assert chosen(monkeypatch, ["cpu"]) == (
        DeviceChoice("cpu", ["cpu: the only usable device"]),
        [],
    )


def test_device_that_lies_leaves_the_cpu_without_a_trial(monkeypatch):
    choice, tried = chosen(monkeypatch, ["mps", "cpu"], lies=["F01"])
    assert (choice.device, tried) == ("cpu", [])
    assert "F01" in choice.message[1]


def test_honest_devices_are_timed(monkeypatch):
    choice, tried = chosen(monkeypatch, ["mps", "cpu"], seconds={"mps": 0.2, "cpu": 1.0})
    assert (choice.device, tried) == ("mps", ["mps", "cpu"])
    assert chosen(monkeypatch, ["mps", "cpu"], seconds={"mps": 2.0, "cpu": 1.0})[0].device == "cpu"


def test_trial_that_learns_nothing_is_no_fast_device(monkeypatch):
    """Canaries know what is public; a loss of nothing but zeros is a lie all the same."""
    seconds = {"mps": {"suspect": "all losses are 0 (loss-all-zero)", "wall": ShortRunTiming(batch=0.1)}, "cpu": 1.0}
    choice, _ = chosen(monkeypatch, ["mps", "cpu"], seconds=seconds)
    assert choice.device == "cpu"
    assert "mps: a short run did not learn: all losses are 0 (loss-all-zero)" in choice.message


def test_policy_that_names_no_device_that_is_there(monkeypatch):
    plan = Plan(cwd="/", trainer="ultralytics", settings={"data": "d"}, policy=Policy(devices=["cuda"]))
    choice, tried = chosen(monkeypatch, ["cpu"], plan=plan)
    assert (choice.device, tried) == ("cpu", [])
    assert "cuda: torch does not see it" in choice.message


# --- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def really(tmp_path_factory):
    """One real trial of a tiny training, shared."""
    root = tmp_path_factory.mktemp("trial")
    for n in range(10):
        save(root, "train" if n < 6 else "val", f"{n}.jpg", drawn(n, size=(64, 48)))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    settings = {
        "model": "yolo11n.yaml",
        "data": str(described(root)),
        "imgsz": 32,
        "batch": 2,
        "epochs": 20,
        "plots": False,
    }
    plan = Plan(cwd=str(root), trainer="ultralytics", settings={**settings, "device": "auto"})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        measured = measure(stage_plan(plan, Stage()), seconds=120)
    return root, before, measured


def test_real_trial_measures_every_part(really):
    _, _, one = really
    assert one.failed == ""
    assert (one.batch, one.size, one.images, one.validated, one.closes) == (2, 32, 6, 4, True)
    assert 100 << 20 < one.training < 4 * GIB
    assert one.validation > 100 << 20
    assert one.checkpoint > 5_000_000
    for pace in (one.wall, one.processor):
        assert min(pace.start, pace.batch, pace.closed, pace.validation, pace.after) > 0
    assert one.wall.start + 6 * one.wall.batch < one.seconds


def test_real_trial_leaves_the_users_files_alone(really):
    """No caches beside labels, no results, no run folder."""
    root, before, _ = really
    now = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert set(now) - set(before) == {root / "data.yaml"}
    assert all(now[path] == before[path] for path in before if path.is_file())


def test_trial_without_a_data_set_says_so(tmp_path):
    one = measure(planned(data=str(tmp_path / "gone.yaml")))
    assert "gone.yaml" in one.failed
    assert Path(tmp_path).exists()
