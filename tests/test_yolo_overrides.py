"""What Ultralytics lacks, added from outside: settings, rarer and lighter validation, the best by another number, a cleared cache,
the assigner on the CPU."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from holdfast.probe.holdfast_probe.frameworks.ultralytics import best_metric
from holdfast.probe.holdfast_probe.frameworks.ultralytics.assigner import AssignerOnCpu
from holdfast.probe.holdfast_probe.frameworks.ultralytics.callbacks import Callbacks, wrap_method
from holdfast.probe.holdfast_probe.frameworks.ultralytics.empty_cache import CacheClearing
from holdfast.probe.holdfast_probe.frameworks.ultralytics.overrides import read_overrides
from holdfast.probe.holdfast_probe.frameworks.ultralytics.rng_parity import RngParity
from holdfast.probe.holdfast_probe.frameworks.ultralytics.validation import Validation
from probe_harness import attempt, collect, environment
from squares import make_squares
from yolo_attempts import Lives, import_ultralytics

from holdfast.schema import events

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ultralytics") is None, reason="Ultralytics is not installed")
IMAGES = 14
OF_THE_TRAINING = {"weights", "averages", "optimizer", "gradients", "schedule", "random numbers", "last.pt"}
RARELY = {"validation": {"every": 2, "best_by": "mAP50", "batch": 3, "max_det": 50}}


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory):
    """Once, before all forks."""
    import_ultralytics(tmp_path_factory.mktemp("config"))
    from ultralytics.models.yolo.detect import DetectionValidator

    original = DetectionValidator.get_stats

    def get_stats(validator):
        """A few steps learn nothing, and all metrics would be 0: instead they follow from the validation's losses."""
        loss = sum(float(value) for value in validator.loss.values())
        names = original(validator)
        return {name: round(loss * factor % 1, 5) for name, factor in zip(names, (7, 11, 13, 17, 19), strict=True)}

    DetectionValidator.get_stats = get_stats


def lives(folder, **options):
    return Lives(make_squares(folder, IMAGES), **options)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return lives(tmp_path_factory.mktemp("bare"), bare=True, epochs=3).to_the_end()


@pytest.fixture(scope="module")
def rarely(tmp_path_factory):
    """Three epochs, of which the second and the last are validated."""
    training = lives(tmp_path_factory.mktemp("rarely"), wishes=RARELY, epochs=3)
    return training, training.to_the_end()


def told(training, kind):
    return [fields for event, fields in training.told if event == kind]


def test_rarer_validation_leaves_the_training_as_it_was(bare, rarely):
    """Bit for bit, though fewer epochs are validated, in other batches, and with fewer boxes."""
    _, out = rarely
    assert {name for name in out if out[name] == bare[name]} >= OF_THE_TRAINING
    assert out["csv"] != bare["csv"]


def test_an_epoch_that_is_not_validated_has_no_metrics(rarely):
    """No event, an empty cell in results.csv; its losses and rates are there, and Ultralytics' own reader reads it."""
    training, _ = rarely
    assert [metrics["epoch"] for metrics in told(training, "metrics")] == [2, 3, None]
    folder = training.folder / "runs" / "life"
    rows = list(csv.DictReader((folder / "results.csv").open()))
    columns = [name for name in rows[0] if name.startswith(("metrics/", "val/"))]
    assert len(columns) == 7
    for row in rows:
        assert all(bool(row[name]) == (row["epoch"] in ("2", "3")) for name in columns)
        assert float(row["train/box_loss"]) > 0
        assert row["lr/pg0"]
    saved = torch.load(folder / "weights" / "last.pt", weights_only=False)["train_results"]
    assert saved["metrics/mAP50(B)"][0] is None
    assert saved["metrics/mAP50(B)"][1] > 0


def test_best_is_the_best_by_what_was_asked_for(rarely):
    """Fitness, which early stopping and best.pt follow, is mAP50, and an epoch that was not validated is none to be the best."""
    training, _ = rarely
    measured = [metrics["values"] for metrics in told(training, "metrics")[:-1]]
    assert all(values["fitness"] == values["metrics/mAP50(B)"] > 0 for values in measured)
    kept = torch.load(training.folder / "runs" / "life" / "weights" / "best.pt", weights_only=False)["train_metrics"]
    assert kept["fitness"] == max(values["metrics/mAP50(B)"] for values in measured)
    assert len({values["metrics/mAP50(B)"] for values in measured}) == len(measured)


def test_killed_with_wishes_it_ends_the_same(tmp_path, rarely):
    """In epochs that are and that are not validated, in a validation, and after saves."""
    batches = (IMAGES + 3) // 4
    deaths = [
        ("after a save", batches),
        ("in a validation", 2 * batches),
        ("after a batch", 2 * batches + 2),
    ]
    training = lives(tmp_path, wishes=RARELY, epochs=3)
    assert training.to_the_end(deaths) == rarely[1]
    assert len(training.restored) == len(deaths)
    assert all(training.exact)


def test_settings_from_outside_are_as_if_asked_for(tmp_path):
    """Those of the command give way, and the training is the one that would have been; it is told what it runs with."""
    wanted = {"lr0": 0.003, "batch": 7, "mosaic": 0.0, "epochs": 2, "max_det": 20}
    asked = lives(tmp_path / "asked", bare=True, **wanted)
    training = lives(tmp_path / "wished", wishes={"settings": {**wanted, "val_period": 5, "mixup": "much"}})
    assert training.to_the_end() == asked.to_the_end()
    (values,) = (fields["values"] for fields in told(training, "settings"))
    assert {name: values[name] for name in wanted} == wanted
    assert (values["device"], values["nbs"], values["accumulate"], values["optimizer"]) == ("cpu", 8, 1, "AdamW")
    assert values["save_dir"] == str(training.folder / "runs" / "life")
    assert all(value is None or isinstance(value, (bool, int, float, str)) for value in values.values())
    notes = {fields["what"]: fields["detail"] for fields in told(training, "probe-note")}
    assert "does not know" in notes["setting override ignored: val_period"]
    assert "mixup" in notes["setting override ignored: mixup"]


def test_settings_hold_when_it_goes_on_from_its_checkpoint(tmp_path):
    """Of which Ultralytics itself takes few: the rates, and what its checkpoint says otherwise."""
    training = lives(tmp_path, most_lost=3600.0, epochs=3)
    assert training.live(("an epoch's begin", 4)) is None
    last = tmp_path / "runs" / "life" / "weights" / "last.pt"
    wanted = {"lr0": 0.004, "max_det": 30, "mosaic": 0.5, "weight_decay": 0.001}
    again = Lives(tmp_path, most_lost=3600.0, epochs=3, wishes={"settings": wanted}, resume=str(last))
    assert again.live(None) is not None
    values = told(again, "settings")[-1]["values"]
    assert {name: values[name] for name in wanted} == wanted
    assert [fields["epoch"] for fields in told(again, "metrics")] == [2, 3, None]
    header, *rows = list(csv.reader((tmp_path / "runs" / "life" / "results.csv").open()))
    place = header.index("lr/pg0")
    assert float(rows[-1][place]) == pytest.approx(0.004 * (1 - 2 / 3 * 0.99), rel=1e-4)


def test_a_wished_learning_rate_holds_under_auto(tmp_path):
    """`optimizer=auto` would take its own."""
    training = lives(tmp_path, wishes={"settings": {"lr0": 0.0007}}, epochs=1, optimizer="auto")
    training.to_the_end()
    values = told(training, "settings")[0]["values"]
    assert (values["optimizer"], values["lr0"]) == ("AdamW", 0.0007)
    rows = list(csv.DictReader((training.folder / "runs" / "life" / "results.csv").open()))
    assert float(rows[0]["lr/pg0"]) == pytest.approx(0.0007)


# --- the parts by themselves -----------------------------------------------------------------------------------------------


@pytest.fixture
def watcher():
    notes = []
    probe = SimpleNamespace(awake=True, note=lambda what, detail="": notes.append(what), notes=notes)
    return Callbacks(probe)


def at(epoch, *, of=20, best_epoch=0, patience=100, stop=False, ranks=0):
    stopper = SimpleNamespace(best_epoch=best_epoch, patience=patience)
    return SimpleNamespace(epoch=epoch - 1, epochs=of, stop=stop, stopper=stopper, world_size=ranks)


def test_when_a_validation_is_due(watcher):
    """Each nth epoch, the last, one at which the training is told to stop, and one that early stopping would end with."""
    every = Validation(torch, watcher, {"every": 5})
    assert [epoch for epoch in range(1, 13) if every.is_due(at(epoch, of=12))] == [5, 10, 12]
    assert every.is_due(at(3, stop=True))
    assert [epoch for epoch in range(1, 13) if every.is_due(at(epoch, best_epoch=5, patience=3))] == [
        5,
        8,
        9,
        10,
        11,
        12,
    ]
    assert not every.is_due(at(8, best_epoch=5, patience=3, ranks=2))


class Pictures:
    """A dataset that draws so often for each of its ten images."""

    def __init__(self, *draws):
        self.draws = draws

    def __len__(self):
        return 10

    def __getitem__(self, number):
        for _ in range(self.draws[number % len(self.draws)]):
            random.random()


def test_a_validation_that_is_left_out_draws_as_one_that_is_made(watcher):
    """Looking how often changes nothing; workers draw for themselves; and it is said where it cannot be told."""
    drawing = RngParity(torch, watcher.note)

    def validate(loader):
        before = random.getstate()
        [loader.dataset[number] for number in range(10)]
        drawing.check(loader, before)
        return random.getstate()

    loader = SimpleNamespace(num_workers=0, dataset=Pictures(2))
    start = random.getstate()
    after = validate(loader)
    random.setstate(start)
    drawing.skip_validation(loader)
    assert random.getstate() == after
    drawing.skip_validation(SimpleNamespace(num_workers=2, dataset=None))
    assert random.getstate() == after
    assert watcher._probe.notes == []
    validate(SimpleNamespace(num_workers=0, dataset=Pictures(1, 2)))
    drawing.skip_validation(SimpleNamespace(num_workers=0, dataset=Pictures(1000)))
    assert len(watcher._probe.notes) == 2


def test_scores():
    """F2 asks for recall; boxes and masks count alike; what is not measured gives no score."""
    box = {"metrics/precision(B)": 0.5, "metrics/recall(B)": 0.8, "metrics/mAP50(B)": 0.6}
    assert best_metric.score(box, "mAP50") == 0.6
    assert best_metric.score(box, "F1") == pytest.approx(0.8 / 1.3)
    assert best_metric.score(box, "F2") == pytest.approx(2.0 / 2.8)
    assert best_metric.score({**box, "metrics/mAP50(M)": 0.2}, "mAP50") == pytest.approx(0.4)
    assert best_metric.score(dict.fromkeys(box, 0.0), "F1") == 0.0
    assert best_metric.score({"metrics/accuracy_top1": 1.0}, "mAP50") is None


def test_the_cache_of_the_training_s_device_is_cleared(watcher):
    """After each nth step and nth epoch; a CPU has none, and a device that cannot is noted."""
    cleared = []
    fake = SimpleNamespace(mps=SimpleNamespace(empty_cache=lambda: cleared.append("mps")), odd=SimpleNamespace())
    clearing = CacheClearing(fake, watcher, {"epochs": 2, "steps": 3})

    class Trainer:
        device = SimpleNamespace(type="mps")
        epoch = 0

        def optimizer_step(self):
            return "stepped"

    clearing.wrap_trainer(Trainer)
    clearing.wrap_trainer(Trainer)  # a second training of the same class
    trainer = Trainer()
    assert [trainer.optimizer_step() for _ in range(7)] == ["stepped"] * 7
    assert cleared == ["mps", "mps"]
    for trainer.epoch in range(4):
        clearing._on_train_epoch_end(trainer)
    assert len(cleared) == 4
    trainer.device = SimpleNamespace(type="cpu")
    trainer.epoch = 1
    clearing._on_train_epoch_end(trainer)
    trainer.device = SimpleNamespace(type="odd")
    clearing._on_train_epoch_end(trainer)
    assert len(cleared) == 4
    assert watcher._probe.notes == ["the device's cache is not cleared"]


def test_wrappers_of_one_method_are_asked_last_first():
    """And each is there once."""
    asked = []

    class Some:
        def method(self):
            asked.append("original")

    def first(original, some, args, kwargs):
        asked.append("first")
        return original(some)

    def second(original, some, args, kwargs):
        asked.append("second")
        return original(some)

    for around in (first, second, first):
        wrap_method(Some, "method", around)
    Some().method()
    assert asked == ["second", "first", "original"]


def test_what_cannot_be_read_is_noted(monkeypatch):
    """And nothing is wished for then."""
    for text in ("{", "[]", '{"settings": 3}', '{"validation": []}'):
        notes = []
        monkeypatch.setenv("HOLDFAST_OVERRIDES", text)
        assert read_overrides(lambda what, detail, notes=notes: notes.append(what)) == {}
        assert len(notes) == 1
    monkeypatch.setenv("HOLDFAST_OVERRIDES", '{"assigner": "cpu"}')
    assert read_overrides(None) == {"assigner": "cpu"}


def test_the_assigner_on_the_cpu_gives_the_same():
    """On the simulated accelerator, whose tensors really are not the CPU's; with the types that they had. In a process of its own: torch
    keeps a thread for each device, and a fork would be without those that other tests have begun.
    """
    program = "import json, test_yolo_overrides; print(json.dumps(test_yolo_overrides.assigned_on_a_device()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"same": True, "devices": ["sim"], "seen on": ["cpu"], "types": True, "positives": True}


def assigned_on_a_device():
    import_ultralytics()
    from ultralytics.utils import tal

    from holdfast.simulator import accelerator

    accelerator.switch_on()
    torch.manual_seed(0)
    assigner = tal.TaskAlignedAssigner(topk=10, num_classes=3)
    corners = torch.rand(2, 60, 2) * 40
    boxes = torch.cat((corners, corners + 20), 2)
    points = torch.rand(60, 2) * 60
    labelled = torch.tensor([[[5.0, 5, 40, 40], [20, 20, 60, 60]], [[0, 0, 30, 30], [0, 0, 0, 0]]])
    given = (
        torch.rand(2, 60, 3),
        boxes,
        points,
        torch.tensor([[[0], [2]], [[1], [0]]]),
        labelled,
        torch.tensor([[[1.0], [1]], [[1], [0]]]),
    )
    expected = assigner(*given)
    seen = []
    original = tal.TaskAlignedAssigner._forward

    def recording(self, *args, **kwargs):
        seen.extend(value.device.type for value in args)
        return original(self, *args, **kwargs)

    tal.TaskAlignedAssigner._forward = recording
    AssignerOnCpu(torch, None).watch(tal)
    found = assigner(*(value.to("sim") for value in given))
    return {
        "same": all(torch.equal(now.cpu(), then) for now, then in zip(found, expected, strict=True)),
        "devices": sorted({value.device.type for value in found}),
        "seen on": sorted(set(seen)),
        "types": [value.dtype for value in found] == [value.dtype for value in expected],
        "positives": bool(expected[3].any()),
    }


# --- the real program ------------------------------------------------------------------------------------------------------


def test_the_yolo_command_under_the_probe(tmp_path):
    """With no line of ours in it, beside a torchvision that may not load: its settings are those wished for."""
    make_squares(tmp_path, 4)
    command = "from ultralytics.cfg import entrypoint; entrypoint()"
    words = f"detect train model=yolo11n.yaml data={tmp_path}/data.yaml epochs=3 imgsz=64 plots=False project={tmp_path}/runs"
    wishes = {"settings": {"epochs": 1, "imgsz": 32, "device": "cpu"}, "validation": {"best_by": "F2"}}
    with attempt(tmp_path / "attempt") as folder:
        variables = environment(
            folder,
            HOLDFAST_OVERRIDES=json.dumps(wishes),
            HOLDFAST_SNAPSHOTS=str(tmp_path / "snapshots"),
            YOLO_CONFIG_DIR=str(tmp_path),
            YOLO_OFFLINE="true",
        )
        ran = subprocess.run(
            [sys.executable, "-c", command, *words.split()],
            env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    probed = collect(folder)
    (settings,) = probed.of(events.Settings)
    assert (settings.source, settings.values["epochs"], settings.values["imgsz"]) == ("ultralytics", 1, 32)
    first, _ = probed.of(events.Metrics)
    assert first.values["fitness"] == pytest.approx(best_metric.score(first.values, "F2"))
    assert not [note for note in probed.notes if "failed" in note]
