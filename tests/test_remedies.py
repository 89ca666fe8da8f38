"""The ladder: the least change that answers a finding, rung after rung, and what becomes of the plan."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
from histories import seen

from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.run_state import RunState
from holdfast.frameworks.ultralytics.effective_batch import Update, halve
from holdfast.frameworks.ultralytics.setting_values import SETTINGS
from holdfast.remedies import apply_changes, remedy_for
from holdfast.remedies.command_line import rewrite_command, settings_in, spelling_of, values_in
from holdfast.remedies.registry import CONDITIONS, all_steps, find_steps
from holdfast.remedies.settings import shrink_image
from holdfast.schema import events
from holdfast.schema.plan import Plan, Policy, Validation, from_toml, to_toml
from holdfast.schema.verdicts import Action, Change, Decision, Finding
from holdfast.storage.journal import Entry
from holdfast.testing.histories import ended, entries, losses, started, trains

DEFAULTS = {name: setting.default for name, setting in SETTINGS.items()}
FIXED = [rule.id for rule in by_id().values() if rule.remedies or rule.remedies_by_cause]
YOLO = Plan(trainer="ultralytics", cwd="/work", settings={"data": "a.yaml"})


class Run:
    """A run that goes on meeting the same finding, attempt after attempt, whatever is changed."""

    def __init__(self, plan, cause, *, device="mps", ultralytics=True, mac=True, torch="2.9.1", **how):
        self.plan, self.cause, self.device, self.ultralytics = plan, cause, device, ultralytics
        self.how = {
            "steps": [10],
            "validating": False,
            "peak": False,
            "saves": True,
            "since": None,
            "words": [],
            "data": {},
            **how,
        }
        self.state = RunState()
        self.torch = torch
        run, _ = started()
        platform = "macOS-15.5-arm64" if mac else "linux"
        self.fold(
            [events.RunStarted(**{**_fields(run), "platform": platform, "environment": how.get("environment", {})})]
        )

    def fold(self, history):
        for entry in entries(history):
            self.state.fold(entry)

    def attempt(self):
        """One more attempt that ends with the finding; its steps are as many as `steps` says, the last number again and again."""
        number = len(self.state.attempts) + 1
        steps = self.how["steps"][min(number, len(self.how["steps"])) - 1]
        settings = {**DEFAULTS, **self.plan.settings, "device": self.device, **self.plan.overrides}
        device = (
            settings["device"]
            if self.ultralytics
            else values_in(self.plan.command, self.plan.flags).get("device", self.device)
        )
        history = [events.AttemptStarted(at=0.0, attempt=number, pid=100, command=["python"]), *trains()]
        history += [events.TorchImported(at=0.2, pid=100, torch=self.torch)]
        if self.ultralytics:
            flat = {name: value for name, value in settings.items() if not isinstance(value, (list, dict))}
            history += [events.Settings(at=0.4, source="ultralytics", values=flat)]
            history += [events.Coverage(at=0.5, seen={"ultralytics": ""}, step_source="optimizer")]
        history += [events.Memory(at=0.6, step=1, device=device)]
        history += losses(*[1.0] * steps)
        if steps and self.how["saves"]:
            history += [events.Snapshot(at=2.0, step=1, position=1, path="1.snap", bytes=1, stall=0.0, seconds=0.0)]
        if self.how["peak"]:
            history += [
                _sample(100.0, 2),
                _sample(200.0, 6),
                events.Evaluation(at=210.0, step=steps, seconds=20.0, fetches=4),
            ]
        if self.how["validating"]:
            history += [events.Epoch(at=300.0, epoch=2, step=steps, seconds=9.0, batches=9, source="ultralytics")]
        history += ended(signal="SIGKILL", last_step=steps, words=self.how["words"])
        self.fold(history)
        severe = Finding(
            rule=self.cause,
            severity="fatal",
            message="",
            data=self.how["data"],
            corrupt_from=self.how["since"],
        )
        self.state.fold(Entry(events.FindingMade(at=99.0, finding=severe), 1))

    def answer(self):
        self.attempt()
        remedy = remedy_for(self.state, self.plan, self.cause)
        if remedy is not None:
            self.plan = apply_changes(self.plan, remedy.changes)
            decision = Decision(
                action=Action.RETRY, attempt=1, why=remedy.description, cause=self.cause, changes=remedy.changes
            )
            self.state.fold(Entry(events.DecisionMade(at=100.0, decision=decision), 1))
        return remedy


def _fields(event):
    return {name: getattr(event, name) for name in event.__struct_fields__}


def _sample(now, gib):
    return events.Sample(at=now, rss=gib << 30, processes=1, available=1 << 33, swap=0, disk_free=1 << 40)


def walk(plan, cause, **how):
    """All remedies until there is none left."""
    run = Run(plan, cause, **how)
    remedies = list(itertools.takewhile(lambda remedy: remedy is not None, (run.answer() for _ in range(40))))
    assert len(remedies) < 40, "a ladder has an end"
    return remedies


def told(remedies):
    """`id what=after ...` for each."""
    return [" ".join([one.id, *(f"{change.setting}={change.after}" for change in one.changes)]) for one in remedies]


def yolo(policy=None, **settings):
    return Plan(trainer="ultralytics", cwd="/work", settings=settings, policy=policy or Policy())


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_of_ultralytics_step_by_step():
    """The whole ladder of a training on a Mac that never fits: the modes that people found by hand come out in their order."""
    plan = yolo(batch=16, imgsz=640, cache="ram", mixup=0.1, workers=8)
    assert told(walk(plan, "killed-out-of-memory", peak=True, steps=[100])) == [
        "fresh-process",
        "nothing-extra cache=False plots=False",
        "clear-cache clear_cache.steps=10",
        "validation-batch validation.batch=8",
        "micro-batch batch=8",
        "micro-batch batch=4",
        "micro-batch batch=2",
        "less-mixup mixup=0.05",
        "less-mixup mixup=0.0",
        "less-mosaic mosaic=0.75",
        "less-mosaic mosaic=0.5",
        "smaller-image imgsz=512",
        "smaller-image imgsz=416",
        "smaller-image imgsz=320",
        "batch-of-one batch=1",
        "next-device device=cpu",
    ]


def test_a_fresh_process_as_long_as_it_comes_further():
    """Without progress the next rung is taken; with it a new process costs nothing."""
    remedies = walk(yolo(), "killed-out-of-memory", steps=[1, 2, 3, 3, 4])
    assert [one.id for one in remedies[:5]] == [
        "fresh-process",
        "fresh-process",
        "fresh-process",
        "micro-batch",
        "fresh-process",
    ]
    assert walk(yolo(), "killed-out-of-memory", steps=[0])[0].id == "micro-batch"
    assert walk(yolo(), "killed-out-of-memory", saves=False)[0].id == "micro-batch", "there is nothing to go on from"


def test_an_end_in_a_validation_gets_lighter_validation_first():
    remedies = walk(yolo(batch=8), "killed-out-of-memory", validating=True)
    assert told(remedies)[:6] == [
        "validation-batch validation.batch=4 plots=False",
        "validation-batch validation.batch=1",
        "validation-boxes validation.max_det=100",
        "validation-less-often validation.every=5",
        "micro-batch batch=4",
        "micro-batch batch=2",
    ]
    run = Run(yolo(batch=8), "killed-out-of-memory", validating=True)
    run.answer()
    assert run.plan.validation == Validation(batch=4)


def test_an_exception_out_of_the_validator_is_an_end_in_a_validation():
    words = [
        "Traceback (most recent call last):",
        '  File "/v/ultralytics/engine/validator.py", line 1, in __call__',
        "RuntimeError: no",
    ]
    run = Run(yolo(batch=8), "device-out-of-memory", device="0", mac=False, words=words)
    run.attempt()
    run.state.attempt.ended = events.AttemptEnded(**{**_fields(run.state.attempt.ended), "signal": None, "code": 1})
    assert remedy_for(run.state, run.plan, run.cause).id == "validation-batch"


def test_fragmented_memory_is_a_code_of_the_finding():
    found = [
        by_id()["device-out-of-memory"].judge(seen(case.history)) for case in by_id()["device-out-of-memory"].cases()
    ]
    codes = [finding.data.get("cause") for finding in found if finding is not None]
    assert set(codes) == {None, "fragmented"}


def test_memory_of_a_cuda_device():
    """What only the host holds is left alone, CUDA's own advice comes first, and a lowered batch is seen."""
    remedies = walk(
        yolo(batch=4, imgsz=320, mosaic=0.0, cache="ram"),
        "device-out-of-memory",
        device="0",
        mac=False,
        data={"cause": "fragmented"},
    )
    assert told(remedies) == [
        "expandable-segments environment.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "micro-batch batch=2",
        "smaller-image imgsz=256",
        "smaller-image imgsz=192",
        "smaller-image imgsz=160",
        "batch-of-one batch=1",
        "next-device device=cpu",
        "nothing-extra cache=False plots=False",
    ]
    run = Run(yolo(batch=32), "device-out-of-memory", device="0", mac=False, steps=[0])
    run.attempt()
    run.fold(
        [
            events.OutputMatched(
                at=1.0,
                rule="device-out-of-memory",
                stream="stderr",
                text="out of memory with batch=32. Reducing to batch=16 and retrying (1/3).",
            )
        ]
    )
    assert told([remedy_for(run.state, run.plan, run.cause)]) == ["micro-batch batch=8"]


def test_a_driver_that_keeps_memory():
    remedies = walk(yolo(batch=2, multi_scale=0.5, mosaic=0.0, imgsz=320), "driver-memory-bloat", steps=[100])
    assert told(remedies)[:4] == [
        "fixed-shapes multi_scale=0.0",
        "clear-cache clear_cache.steps=10",
        "cap-watermarks environment.PYTORCH_MPS_HIGH_WATERMARK_RATIO=1 environment.PYTORCH_MPS_LOW_WATERMARK_RATIO=0.8",
        "smaller-image imgsz=256",
    ]


def test_a_leak_that_is_too_fast():
    """Loader workers are the first suspects; a new process was tried by plan already."""
    remedies = walk(yolo(batch=4), "memory-leak", device="0", mac=False)
    assert told(remedies)[:3] == ["fewer-workers workers=2", "no-workers workers=0", "micro-batch batch=2"]
    assert told(walk(yolo(batch=4), "memory-leak", steps=[100]))[0] == "clear-cache clear_cache.steps=10"


def test_a_training_that_lives_or_was_stopped_did_not_end_in_a_validation():
    """The end of an epoch comes before its validation: only a death there is one in it. After the last epoch there is one more."""
    cause = "killed-out-of-memory"
    run = Run(yolo(batch=8), cause, validating=True)
    run.attempt()
    died = run.state.attempt.ended
    for end in (None, {"stopped_by": "rule", "rule": cause}, {"planned": "memory would run out"}):
        run.state.attempt.ended = end and events.AttemptEnded(**{**_fields(died), **end})
        assert remedy_for(run.state, run.plan, cause).id == "fresh-process"
    run.state.attempt.ended = died
    assert remedy_for(run.state, run.plan, cause).id == "validation-batch"
    run.fold([events.Evaluation(at=310.0, step=10, seconds=9.0, fetches=4)])
    assert remedy_for(run.state, run.plan, cause).id == "fresh-process"
    run.state.attempt.planned_epochs = 2
    assert remedy_for(run.state, run.plan, cause).id == "validation-batch"


def test_a_validation_spike():
    assert told(walk(yolo(batch=4), "validation-memory-spike")) == [
        "validation-batch validation.batch=2 plots=False",
        "validation-batch validation.batch=1",
        "validation-boxes validation.max_det=100",
        "validation-less-often validation.every=5",
    ]


def test_a_slow_epoch_by_its_cause():
    swapped = walk(yolo(batch=4), "epoch-time-blowup", data={"cause": "swap"}, steps=[100])
    assert told(swapped)[:2] == ["clear-cache clear_cache.steps=10", "micro-batch batch=2"]
    waited = walk(yolo(workers=2), "epoch-time-blowup", data={"cause": "data"}, device="0", mac=False)
    assert told(waited) == ["more-workers workers=4", "more-workers workers=8", "cache-on-disk cache=disk"]
    assert walk(yolo(), "epoch-time-blowup", data={"cause": "load"}) == []
    assert walk(yolo(), "epoch-time-blowup") == []


def test_the_rule_names_the_cause_that_its_remedies_depend_on():
    rule = by_id()["epoch-time-blowup"]
    named = {
        case.description: found.data.get("cause")
        for case in rule.cases()
        if (found := rule.judge(seen(case.history))) is not None
    }
    assert named["swapping"] == named["steps of a loop without epochs, with swapping"] == "swap"
    assert named["waiting for data"] == "data"
    assert named["another program, for a long time"] == "load"
    assert named["no visible reason"] is None
    assert set(rule.remedies_by_cause) == {"swap", "data"}


def test_every_remedy_of_a_rule_is_a_step_and_every_step_is_of_a_rule():
    ids = {id_ for rule in by_id().values() for ids in (rule.remedies, *rule.remedies_by_cause.values()) for id_ in ids}
    assert {id_.partition("@")[0] for id_ in ids} == {id_ for _, id_ in all_steps()}
    assert {id_.partition("@")[2] for id_ in ids} == {"", *CONDITIONS}


def test_the_step_of_a_framework_replaces_the_general_one():
    ids = ("less-mixup", "micro-batch@ended-in-validation", "fewer-workers")
    assert [(step.id, step.framework) for step in find_steps(ids, "command")] == [
        ("micro-batch", ""),
        ("fewer-workers", ""),
    ]
    assert [(step.id, step.framework) for step in find_steps(ids, "ultralytics")] == [
        ("less-mixup", "ultralytics"),
        ("micro-batch", "ultralytics"),
        ("fewer-workers", ""),
    ]


@pytest.mark.parametrize(
    ("began", "sizes"),
    [
        (640, [512, 416, 320]),
        (1280, [1024, 832, 672, 544, 448, 352, 320]),
        (320, [256, 192, 160]),
        (64, []),
        (160, [128, 96, 80]),
    ],
)
def test_image_sizes(began, sizes):
    """In strides down to 320; below that only where it began there, and not under two strides."""
    found, size = [], began
    while (size := shrink_image(size, began)) is not None:
        found.append(size)
    assert found == sizes


# --- the effective batch ----------------------------------------------------------------------------------------------


def as_ultralytics_does(batch, nbs, weight_decay):
    """Its own two lines."""
    accumulate = max(round(nbs / batch), 1)
    return batch * accumulate, weight_decay * batch * accumulate / nbs


def test_ultralytics_still_does_so():
    """The arithmetic rests on two lines of its trainer: when they change, it has to."""
    trainer = Path(importlib.util.find_spec("ultralytics").origin).parent / "engine" / "trainer.py"
    text = trainer.read_text()
    assert "self.accumulate = max(round(self.args.nbs / self.batch_size), 1)" in text
    assert "weight_decay = self.args.weight_decay * self.batch_size * self.accumulate / self.args.nbs" in text


@pytest.mark.parametrize(("nbs", "most"), [(64, 0.035), (16, 0.1), (100, 0.025)])
def test_half_the_batch_is_the_same_update(nbs, most):
    """Even batches: the same images an update and the same decay. Of odd ones some have no part that fits, and come near."""
    for batch in range(2, 257):
        before = Update(batch, nbs, 0.0005)
        after = halve(before)
        assert max(batch // 4, min(2, batch // 2)) <= after.batch <= batch // 2
        whole, decay = as_ultralytics_does(*before)
        now, decay_now = as_ultralytics_does(*after)
        assert (whole, decay) == pytest.approx((before.effective, before.decay), rel=1e-12)
        assert decay_now == pytest.approx(decay, rel=1e-12)
        assert abs(now - whole) <= (0 if batch % 2 == 0 else most * whole)
        if as_ultralytics_does(after.batch, nbs, 0.0005)[0] == whole:
            assert after == before._replace(batch=after.batch), "nothing else is changed without need"


def test_larger_batches_than_nbs_keep_their_update():
    """128 images were one batch and one update: nbs and weight_decay go with the batch."""
    remedy = walk(yolo(batch=128, weight_decay=0.0005), "killed-out-of-memory", steps=[0])[0]
    assert told([remedy]) == ["micro-batch batch=64 nbs=128 weight_decay=0.001"]
    assert "the effective batch stays 128" in remedy.description


def test_a_prime_batch_changes_the_update_and_scales_the_rate():
    remedy = walk(yolo(batch=43, optimizer="SGD", lr0=0.01), "killed-out-of-memory", steps=[0])[0]
    assert told([remedy]) == ["micro-batch batch=21 nbs=42 weight_decay=0.00033593750000000003 lr0=0.00976744"]
    assert "changes from 43 to 42" in remedy.description
    assert "from 0.01 to 0.00976744" in remedy.description


def test_walking_down_keeps_the_effective_batch_all_the_way():
    for batch in (12, 16, 24, 48, 96, 256):
        run = Run(yolo(batch=batch), "device-out-of-memory", device="0", mac=False, steps=[0])
        whole, decay = as_ultralytics_does(batch, 64, 0.0005)
        while (remedy := run.answer()) is not None and remedy.id in ("micro-batch", "batch-of-one"):
            now = {**DEFAULTS, **run.plan.settings, **run.plan.overrides}
            assert as_ultralytics_does(now["batch"], now["nbs"], now["weight_decay"]) == pytest.approx((whole, decay))


# --- the device -------------------------------------------------------------------------------------------------------


def test_the_assigner():
    """It comes at random: once as it is, then the assigner alone on the CPU, fewer boxes, and at last the CPU."""
    assert told(walk(yolo(mixup=0.04), "assigner-shape-mismatch", steps=[10, 20, 30])) == [
        "as-it-is",
        "assigner-on-cpu assigner=cpu",
        "less-mixup mixup=0.0",
        "less-mosaic mosaic=0.75",
        "less-mosaic mosaic=0.5",
        "next-device device=cpu",
    ]


@pytest.mark.parametrize(
    "cause",
    ["loss-all-zero", "loss-component-zero", "metrics-all-zero", "gradients-zero", "weights-frozen", "loss-constant"],
)
def test_a_device_that_does_not_learn(cause):
    """On an accelerator the device is suspected, and what it made is not gone on from; on a CPU it is the user's own mistake."""
    (remedy,) = walk(yolo(batch=8), cause, since=1)
    assert told([remedy]) == ["next-device device=cpu"]
    assert remedy.from_start
    assert "the CPU, with the full effective batch of 64" in remedy.description
    assert walk(yolo(batch=8), cause, device="cpu") == []


def test_devices_in_the_order_of_the_plan():
    order = Policy(devices=["mps", "cuda:1", "cpu"])
    assert told(walk(yolo(order), "loss-all-zero")) == ["next-device device=cuda:1", "next-device device=cpu"]
    assert told(walk(yolo(order), "loss-all-zero", device="1", mac=False)) == ["next-device device=cpu"]
    assert walk(yolo(Policy(devices=["mps"])), "loss-all-zero") == []
    assert walk(yolo(Policy(devices=["mps", "cpu"], never_change=["device"])), "loss-all-zero") == []


def test_numbers_that_are_not_finite():
    """On a CPU and on MPS amp does nothing, so it is no rung there; on CUDA the device comes last."""
    plan = yolo(optimizer="SGD", lr0=0.01)
    on_cpu = walk(plan, "loss-not-finite", device="cpu", since=5)
    assert told(on_cpu)[:2] == ["as-it-is", "half-rate lr0=0.005"]
    assert on_cpu[0].from_start
    assert "step" not in on_cpu[0].description  # where it goes on from is the decision's word
    assert told(walk(plan, "loss-not-finite", since=5))[:3] == [
        "as-it-is",
        "next-device device=cpu",
        "half-rate lr0=0.005",
    ]
    on_cuda = walk(yolo(Policy(never_change=["lr0"])), "loss-not-finite", device="0", mac=False, since=5)
    assert told(on_cuda) == ["as-it-is", "full-precision amp=False", "next-device device=cpu"]


def test_half_the_rate_ends_somewhere():
    """Each time half of it, and no more than three times: then the rate is not what is wrong."""
    plan = yolo(optimizer="SGD", lr0=0.08)
    remedies = walk(plan, "loss-not-finite", device="cpu", since=1)
    assert told(remedies) == ["half-rate lr0=0.04", "half-rate lr0=0.02", "half-rate lr0=0.01"]


def test_half_the_rate_of_an_optimizer_that_chose_itself():
    """Under optimizer=auto lr0 is ignored: what was seen to step is named with half the rate that was seen."""
    run = Run(yolo(), "loss-not-finite", device="cpu", since=1)
    run.attempt()
    assert remedy_for(run.state, run.plan, run.cause) is None
    run.fold([events.Coverage(at=1.0, step_source="optimizer", optimizers=["AdamW"])])
    remedy = remedy_for(run.state, run.plan, run.cause)
    assert told([remedy]) == ["half-rate optimizer=AdamW momentum=0.9 warmup_bias_lr=0.0 lr0=0.005"]


def test_gradients_that_are_too_large_on_an_old_torch():
    assert told(walk(yolo(), "gradients-exploding"))[0] == "prefer-metal environment.PYTORCH_MPS_PREFER_METAL=1"
    assert told(walk(yolo(), "gradients-exploding", torch="2.14.0")) == ["next-device device=cpu"]


@pytest.mark.parametrize(
    ("cause", "rungs", "how"),
    [
        ("op-not-implemented", ["mps-fallback environment.PYTORCH_ENABLE_MPS_FALLBACK=1", "next-device device=cpu"], {}),
        ("float64-unsupported", ["next-device device=cpu"], {}),
        ("float64-unsupported", ["without-scaler amp=False", "next-device device=cpu"], {"words": ['  File "torch/amp/grad_scaler.py", line 2']}),
        (
            "watermark-invalid",
            ["both-watermarks environment.PYTORCH_MPS_LOW_WATERMARK_RATIO=0.56"],
            {"environment": {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.7"}},
        ),
        ("fork-after-metal", ["next-device device=cpu"], {}),
        ("command-buffer-reused", ["as-it-is", "next-device device=cpu"], {}),
        (
            "command-buffer-reused",
            ["no-mps-fallback environment.PYTORCH_ENABLE_MPS_FALLBACK=0", "as-it-is", "next-device device=cpu"],
            {"environment": {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}, "steps": [10, 20]},
        ),
        ("command-buffer-failed", ["as-it-is", "micro-batch batch=2", "next-device device=cpu"], {"since": 9}),
        ("backward-view-incompatible", ["next-device device=cpu"], {"steps": [0]}),
        ("label-count-negative", ["as-it-is", "next-device device=cpu"], {}),
        ("openmp-duplicate", ["as-it-is", "one-thread environment.OMP_NUM_THREADS=1"], {}),
        ("openmp-duplicate", ["one-thread environment.OMP_NUM_THREADS=1"], {"steps": [0]}),
        ("step-hang", ["as-it-is", "next-device device=cpu"], {}),
        ("step-hang", ["no-workers workers=0", "next-device device=cpu"], {"device": "0", "mac": False}),
        ("crashed-segfault", ["as-it-is", "no-workers workers=0", "one-thread environment.OMP_NUM_THREADS=1"], {"device": "0", "mac": False, "policy": Policy(never_change=["device"])}),
        ("nms-cut-short", ["validation-batch validation.batch=2", "validation-batch validation.batch=1"], {}),
        ("validation-disagrees", ["validation-on-cpu validation.on_cpu=always"], {}),
        ("disk-filling", ["write-less plots=False save_period=-1"], {"settings": {"save_period": 1}}),
        ("python-exception", [], {}),
        ("disk-full", [], {}),
    ],
)  # fmt: skip
def test_known_ends(cause, rungs, how):
    """Each with the one thing that is known to answer it, and the CPU where nothing else does."""
    plan = yolo(how.pop("policy", None), batch=4, **how.pop("settings", {}))
    remedies = walk(plan, cause, **how)
    assert told(remedies) == rungs
    assert all(remedy.from_start == by_id()[cause].corrupts_state for remedy in remedies)


def test_crashes_on_a_mac_end_on_the_cpu_with_the_full_effective_batch():
    """Report 002: less accumulation comes late, states the changed batch, scales the rate, and is taken back on the CPU."""
    remedies = walk(yolo(batch=4, optimizer="SGD", lr0=0.02), "crashed-abort")
    assert told(remedies) == [
        "as-it-is",
        "one-thread environment.OMP_NUM_THREADS=1",
        "accumulate-less nbs=16 lr0=0.005",
        "next-device device=cpu nbs=64 lr0=0.02",
    ]
    assert "from 64 to 16" in remedies[2].description


def test_every_ladder_is_of_a_rule_and_has_an_end():
    """No rung is offered for ever, on any device, and each says what it does and what a change is for."""
    for cause in FIXED:
        for device in ("mps", "0", "cpu"):
            for remedy in walk(yolo(batch=4, imgsz=416, cache="ram"), cause, device=device, mac=device == "mps"):
                assert remedy.description.endswith(".")
                assert all(change.why and change.before != change.after for change in remedy.changes)


# --- the plan's policy --------------------------------------------------------------------------------------------------


def test_what_must_never_be_changed_is_not():
    policy = Policy(never_change=["imgsz", "batch", "mosaic", "validation", "OMP_NUM_THREADS"])
    assert told(walk(yolo(policy, cache="ram", mixup=0.1), "killed-out-of-memory", validating=True)) == [
        "fresh-process",
        "nothing-extra cache=False plots=False",
        "less-mixup mixup=0.05",
        "less-mixup mixup=0.0",
        "next-device device=cpu",
    ]
    assert told(walk(yolo(policy), "openmp-duplicate")) == ["as-it-is"]


def test_only_what_may_be_changed_is():
    """What keeps the update the same belongs to the batch."""
    remedies = walk(yolo(Policy(may_change=["batch"]), batch=128), "killed-out-of-memory", steps=[0])
    assert {change.setting for remedy in remedies for change in remedy.changes} == {"batch", "nbs", "weight_decay"}


# --- other commands -----------------------------------------------------------------------------------------------------


def commanded(text, **more):
    return Plan(command=text.split(), cwd="/work", **more)


def walked(text, cause="killed-out-of-memory", device="cuda:0", **how):
    plan = commanded(text, **{name: how.pop(name) for name in ("flags", "policy") if name in how})
    run = Run(plan, cause, ultralytics=False, device=device, mac=device == "mps", **how)
    commands = []
    while (remedy := run.answer()) is not None:
        commands.append((remedy, " ".join(run.plan.command)))
        assert len(commands) < 20
    return commands


@pytest.mark.parametrize("text", ["python train.py --model yolo", "./train --model yolo", "sh train.sh yolo"])
def test_a_script_with_a_model_named_like_a_program_is_changed_on_its_command_line(text):
    commands = walked(f"{text} --batch-size 8 --accum-steps 1", steps=[0])
    assert commands[0][1] == f"{text} --batch-size 4 --accum-steps 2"


def test_a_command_with_accumulation_keeps_its_effective_batch():
    commands = walked(
        "python run_glue.py --per_device_train_batch_size 8 --gradient_accumulation_steps=4 --fp16", steps=[0]
    )
    assert [command for _, command in commands[:3]] == [
        "python run_glue.py --per_device_train_batch_size 4 --gradient_accumulation_steps=8 --fp16",
        "python run_glue.py --per_device_train_batch_size 2 --gradient_accumulation_steps=16 --fp16",
        "python run_glue.py --per_device_train_batch_size 1 --gradient_accumulation_steps=32 --fp16",
    ]
    assert "the effective batch stays 32" in commands[0][0].description
    assert [change.setting for change in commands[0][0].changes] == [
        "--per_device_train_batch_size",
        "--gradient_accumulation_steps",
    ]


def test_a_command_without_accumulation_scales_its_rate():
    remedy, command = walked("python train.py -b 8 --lr 0.1 -j 1", steps=[0])[0]
    assert command == "python train.py -b 4 --lr 0.05 -j 1"
    assert "changes from 8 to 4" in remedy.description
    assert "from 0.1 to 0.05" in remedy.description
    remedy, command = walked("python train.py -b 8", steps=[0])[0]
    assert command == "python train.py -b 4"
    assert "The learning rate is unknown" in remedy.description


def test_a_command_with_flags_that_the_plan_names():
    """What is not on the command line is added only where the plan names it."""
    flags = {"batch": "--n", "accumulate": "--steps-per-update"}
    _, command = walked("python train.py --n 12", flags=flags, steps=[0])[0]
    assert command == "python train.py --n 6 --steps-per-update 2"


def test_a_command_on_a_faulty_device():
    assert [command for _, command in walked("python train.py --device mps", "loss-all-zero", "mps")] == [
        "python train.py --device cpu"
    ]
    assert walked("python train.py", "loss-all-zero", "mps") == []
    ((remedy, _),) = walked("python train.py", "loss-all-zero", "cuda:0")
    assert told([remedy]) == ["next-device environment.CUDA_VISIBLE_DEVICES="]


def test_report_002_as_a_command():
    """Batch 16 with accumulation 32: less accumulation late, then the CPU with all 512 again."""
    commands = [
        command
        for _, command in walked(
            "python train.py --batch-size 16 --accum 32 --lr 0.001 --device mps", "crashed-abort", "mps"
        )
    ]
    assert commands[2:] == [
        "python train.py --batch-size 16 --accum 4 --lr 0.000125 --device mps",
        "python train.py --batch-size 16 --accum 32 --lr 0.001 --device cpu",
    ]


def test_a_command_that_says_nothing_has_the_rungs_that_need_no_flag():
    assert [remedy.id for remedy, _ in walked("python train.py", "crashed-abort", "mps")] == ["as-it-is", "one-thread"]
    assert [remedy.id for remedy, _ in walked("python train.py", "killed-out-of-memory", "mps")] == ["fresh-process"]


def test_an_ultralytics_script_is_set_from_outside():
    """Its own flags are its own business: the framework is told, and the command stays as it is."""
    run = Run(commanded("python train.py --batch 16"), "killed-out-of-memory", steps=[0])
    remedy = run.answer()
    assert told([remedy]) == ["micro-batch batch=8"]
    assert run.plan.overrides == {"batch": 8}
    assert run.plan.command == ["python", "train.py", "--batch", "16"]


# --- command lines ------------------------------------------------------------------------------------------------------

HEADS = [
    ["python", "train.py"],
    ["python3", "-u", "src/train.py", "fit"],
    ["torchrun", "--nproc_per_node", "2", "train.py"],
    ["python", "-m", "torch.distributed.run", "--nproc_per_node=2", "train.py"],
    ["accelerate", "launch", "--num_processes", "1", "train.py"],
    ["python", "-m", "pkg.train"],
    ["uv", "run", "--", "python", "train.py"],
    ["nice", "-n", "10", "/venv/bin/python", "train.py"],
    ["my-train"],
]
OTHERS = [
    [],
    ["--name", "batch=64"],
    ["--amp"],
    ["--data", "coco.yaml", "--seed=1"],
    ["--out", "batch-size/16"],
    ["--val-ratio", "16"],
]
STYLES = {
    "batch": ["--batch-size {}", "--batch-size={}", "--batch_size {}", "-b {}", "-b{}", "--bs {}", "batch={}", "++data.batch_size={}", "--data.batch_size {}"],
    "accumulation": ["--gradient_accumulation_steps {}", "--accum={}", "trainer.accumulate_grad_batches={}"],
    "imgsz": ["--img-size {}", "--imgsz={}", "imgsz={}", "--resolution {}"],
    "workers": ["--num-workers {}", "-j {}", "-j{}", "--dataloader_num_workers={}", "workers={}"],
}  # fmt: skip


@pytest.mark.parametrize("name", STYLES)
def test_every_style_is_read_and_rewritten(name):
    """Whatever stands before and after it, one value is changed and every other argument is as it was."""
    for head, before, after, style in itertools.product(HEADS, OTHERS, OTHERS, STYLES[name]):
        if before == ["--amp"] and not style.startswith("-"):
            continue  # it could be the flag's own value
        command = [*head, *before, *style.format(48).split(), *after]
        assert values_in(command) == {name: 48}, command
        changed = rewrite_command(command, spelling_of(name, command), 24)
        assert changed == [*head, *before, *style.format(24).split(), *after]
        assert values_in(changed) == {name: 24}


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "python train.py --batch-size 16"],
        ["sh", "-ec", "exec train --batch-size 16", "--batch-size", "16"],
        ["python", "-b", "16", "train.py"],
        ["python", "train.py", "--", "--batch-size", "16"],
        ["python", "train.py", "--batch-size", "auto"],
        ["python", "train.py", "--batch-size", "$B"],
        ["python", "train.py", "--batch-size"],
        ["python", "train.py", "--batch-size", "--amp"],
        ["python", "train.py", "--val.batch-size", "16"],
        ["python", "train.py", "--verbose", "batch=16"],
        ["python", "train.py", "--batch-size", "-1"],
        ["python", "train.py", "--batches", "16"],
        ["python", "train.py", "--max-lr", "0.1"],
        ["python", "train.py", "--device", "rig-7"],
        [],
    ],
)
def test_what_is_not_understood_is_left_alone(command):
    assert settings_in(command) == []
    for name in STYLES:
        assert spelling_of(name, command) is None
    assert rewrite_command(command, "--batch-size", 8) == command


def test_the_last_of_two_counts_and_both_are_rewritten():
    command = ["python", "train.py", "--lr", "1e-3", "--lr", "0.5"]
    assert values_in(command) == {"lr0": 0.5}
    assert rewrite_command(command, "--lr", 0.25) == ["python", "train.py", "--lr", "0.25", "--lr", "0.25"]


# --- applied ------------------------------------------------------------------------------------------------------------


def test_changes_have_their_places_in_the_plan():
    changes = {
        "batch": 8,
        "device": "cpu",
        "validation.every": 5,
        "validation.max_det": 100,
        "validation.on_cpu": "always",
        "clear_cache.steps": 10,
        "assigner": "cpu",
        "environment.OMP_NUM_THREADS": "1",
    }
    made = [Change(setting=what, before=None, after=after) for what, after in changes.items()]
    plan = apply_changes(YOLO, made)
    assert plan.overrides == {"batch": 8, "device": "cpu"}
    assert plan.validation == Validation(every=5, max_det=100, on_cpu="always")
    assert (plan.clear_cache.steps, plan.assigner, plan.environment) == (10, "cpu", {"OMP_NUM_THREADS": "1"})
    assert plan.settings == YOLO.settings
    assert YOLO.overrides == {}
    assert from_toml(to_toml(plan)) == plan
    assert apply_changes(plan, made) == plan
    assert apply_changes(plan, []) is plan


def test_changes_can_be_taken_back():
    """After them and their opposites the plan is what it was, but for values that now stand there in so many words."""
    plan = commanded("python train.py --batch-size 16 --lr=0.1 workers=4")
    there = [
        Change(setting="--batch-size", before=16, after=8),
        Change(setting="--lr", before=0.1, after=0.05),
        Change(setting="workers=", before=4, after=0),
    ]
    back = [Change(setting=change.setting, before=change.after, after=change.before) for change in there]
    assert apply_changes(plan, there).command == ["python", "train.py", "--batch-size", "8", "--lr=0.05", "workers=0"]
    assert apply_changes(apply_changes(plan, there), back) == plan


def test_no_rung_sets_what_hides_a_fault():
    for cause in FIXED:
        for remedy in walk(yolo(batch=4), cause):
            assert not any("KMP" in change.setting or "FORK_SAFETY" in change.setting for change in remedy.changes)
            assert not any(
                change.setting.endswith("WATERMARK_RATIO") and float(change.after) == 0 for change in remedy.changes
            )
