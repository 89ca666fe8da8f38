"""A part of the loss is exactly zero while other parts are not.

**What it means.** The loss of a detector has several parts: where objects are (box, dfl) and what they are (cls). If
the box parts are exactly 0 on images that do contain labeled objects, no prediction is matched to any object: the model
learns nothing about boxes, and mAP stays at 0, although the total loss looks normal. It is visible in the first
batches; in one reported case, that was an epoch before the other losses also became zero.

**Why it happens.** Common causes are labels that are corrupted on the device (asynchronous copies to MPS that were used
before they finished, in ultralytics 8.3.203 on M3 and M4), boxes that are empty or outside their images, or an assigner
that fails on the device. On any device, the objects may be so small that no prediction of an untrained model overlaps
them.

**What to do.** Open `train_batch0.jpg`: if the boxes are wrong there, the labels are wrong. Run a few steps with
`device=cpu`: if box is not 0 there, the device is the cause; upgrade to ultralytics 8.3.204 or newer, which no longer
uses asynchronous copies. Never use `non_blocking=True` when copying to MPS. If objects are only a few pixels wide, use
a larger `imgsz`, or start from pretrained weights.

**When it is reported.** Holdfast must know the parts of the loss, from the Ultralytics integration or from the columns
of a results file. It is reported if every box part was 0 from the start and another part was not:

- in 10 steps with at least 30 labeled objects in total
- in 20 steps, if labeled objects are not counted
- in a whole epoch, if only the losses of epochs are known

**When it is not reported.** Batches without labeled objects are ignored, because box may correctly be 0 there.

**Severity.** The severity is `fatal`. If any other part is 0 from the start for 100 steps (a weight set to 0, a mask
loss without masks, dfl if the model has none), or if a part fell to 0 and stays there for 100 steps while others
continue, it is reported as a `note`.

Sources: ultralytics/hub#1199, ultralytics#22228, ultralytics#7554, pytorch#139550, pytorch#189690; in one reported
case, the results show box = dfl = 0 and cls = 3.37 in epoch 1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import is_loss, is_train
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.rule import AttemptState, Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.series import parts, validations

if TYPE_CHECKING:
    from collections.abc import Iterable


LIMITS = {"steps": 10, "objects": 30, "steps_where_objects_are_not_counted": 20, "steps_of_a_note": 100}
BOX = re.compile(r"(?:^|[^a-z])(?:b?box|[gcd]iou)(?:$|[^a-z])")
WITH_BOX = re.compile(r"(?:^|[^a-z])(?:dfl|l1|iou)(?:$|[^a-z])")
"""Other parts about boxes: they are zero together with the box loss when nothing is matched."""


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    series = attempt.losses.parts
    limits = state.get_limits("loss-component-zero", LIMITS)
    if len(series) > 1:
        if not any(part.last == 0.0 for part in series.values()):
            return None
        return _report_steps(state, limits) or _report_note(attempt, limits["steps_of_a_note"])
    return _report_epochs(state)


def _report_steps(state: RunState, limits: Limits) -> Finding | None:
    """Report boxes that never had a loss while another part had one."""
    attempt = state.attempt
    series = attempt.losses.parts
    zero = _box_parts(series)
    if not zero or not all(series[name].zeros_at_first == series[name].count for name in zero):
        return None
    steps = min(attempt.losses.labelled_zeros_at_first.get(name, 0) for name in zero)
    objects = attempt.losses.objects
    nonzero = [name for name, part in series.items() if name not in zero and part.zeros < part.count]
    enough = steps >= limits["steps_where_objects_are_not_counted"]
    if objects is not None:
        enough = steps >= limits["steps"] and objects >= limits["objects"]
    if not enough or not nonzero:
        return None
    evidence = [f"{name} is 0.0 in {steps} of {steps} steps" for name in zero]
    evidence += [f"{name} was between {series[name].lowest:.4g} and {series[name].highest:.4g}" for name in nonzero]
    if objects is not None:
        evidence.append(f"those batches contained {objects} labeled objects")
    return _make_fatal(zero, f"the first {steps} steps", nonzero, evidence, state)


def _report_epochs(state: RunState) -> Finding | None:
    """Report the same from the means of whole epochs, as in a results file."""
    tracks = {name: track for name, track in state.attempt.metrics.tracks.items() if is_loss(name) and is_train(name)}
    zero = _box_parts(tracks)
    if not zero or not all(tracks[name].all_zero for name in zero):
        return None
    nonzero = [name for name, track in tracks.items() if name not in zero and track.zeros < len(track.points)]
    if not nonzero:
        return None
    epochs = len(tracks[zero[0]].points)
    evidence = [f"{name} is 0 in {epochs} of {epochs} epochs" for name in zero]
    evidence += [
        f"{name} was {tracks[name].points[0].value:.4g} in epoch {tracks[name].points[0].epoch}" for name in nonzero
    ]
    return _make_fatal(zero, "the first epoch" if epochs == 1 else f"all {epochs} epochs", nonzero, evidence, state)


def _box_parts(names: Iterable[str]) -> list[str]:
    names = [name for name in names if BOX.search(name.lower()) or WITH_BOX.search(name.lower())]
    return names if any(BOX.search(name.lower()) for name in names) else []


def _make_fatal(zero: list[str], when: str, nonzero: list[str], evidence: list[str], state: RunState) -> Finding:
    try_cpu = ["run a few steps with device=cpu: if they are not 0 there, the device is the cause"]
    fixed_version = hint(state, "boxes-not-corrupt")
    return Finding(
        severity="fatal",
        message=f"{' and '.join(zero)} {'was' if len(zero) == 1 else 'were'} exactly 0 in {when} while "
        f"{' and '.join(nonzero)} {'was' if len(nonzero) == 1 else 'were'} not: no prediction is matched to an object, so "
        "the model learns nothing about boxes.",
        evidence=evidence,
        remedies=[
            f"check the boxes in a training batch{hint(state, 'batch-plot')}: if they are wrong there, the labels are wrong",
            *try_cpu,
            *([f"install a version that copies boxes correctly{fixed_version}"] if fixed_version else []),
            "if the objects are only a few pixels wide, use larger images or start from pretrained weights",
        ],
        corrupt_from=state.attempt.first_step,
    )


def _report_note(attempt: AttemptState, min_steps: float) -> Finding | None:
    series = attempt.losses.parts
    for name, part in series.items():
        if part.last != 0.0 or part.same_in_a_row < min_steps or part.nonfinite:
            continue
        if not any(other.last and other.same_in_a_row < min_steps for other in series.values()):
            continue
        from_the_start = part.zeros == part.count
        if from_the_start and attempt.losses.labelled_zeros_at_first.get(name, 0) < min_steps:
            continue
        how = "from the start" if from_the_start else f"for the last {part.same_in_a_row} steps"
        return Finding(
            severity="note",
            message=f"{name} has been exactly 0 {how}, while other parts of the loss are not.",
            evidence=[f"{name} was 0.0 in {part.zeros} of {part.count} steps"],
            remedies=[f"if {name} is meant to be used, check its weight and the labels that it needs"],
            confidence="possible",
        )
    return None


def _unmatched(count: int, instances: int | None = None) -> list[events.AnyEvent]:
    return parts(count, instances=instances, box_loss=0.0, cls_loss=3.4, dfl_loss=0.0)


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.Metrics, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    suspects_device=True,
    in_dry_run=True,
    charts=("parts",),
    remedies=("next-device",),
    cases=lambda: [
        Case("no box loss in ten batches with objects", "fatal", trains(), _unmatched(10, 12)),
        Case("no box loss, and objects are not counted", "fatal", _unmatched(20)),
        Case(
            "box and dfl are 0 from the start, cls an epoch later",
            "fatal",
            validations(train__box_loss=[0.0] * 3, train__cls_loss=[3.37, 0.0, 0.0], train__dfl_loss=[0.0] * 3),
            ended(0, last_step=0),
        ),
        Case(
            "a transformer detector that matches nothing",
            "fatal",
            parts(10, instances=8, giou_loss=0.0, cls_loss=2.0, l1_loss=0.0),
        ),
        Case("a few tiny objects now and then", None, _unmatched(25, 1)),
        Case("too few steps", None, _unmatched(9, 12)),
        Case("images without objects", None, _unmatched(60, 0)),
        Case(
            "the first images are empty, later ones have boxes",
            None,
            _unmatched(30, 0),
            parts(50, first=31, instances=9, box_loss=1.2, cls_loss=2.0, dfl_loss=0.9),
        ),
        Case(
            "a few small objects without a match at first",
            None,
            _unmatched(6, 3),
            parts(40, first=7, instances=3, box_loss=1.2, cls_loss=2.0, dfl_loss=0.9),
        ),
        Case(
            "all parts are zero (reported as loss-all-zero)", None, parts(30, instances=3, box_loss=0.0, cls_loss=0.0)
        ),
        Case(
            "box has a weight of 0 on purpose",
            "note",
            parts(120, instances=3, box_loss=0.0, cls_loss=[2.0 - n / 100 for n in range(120)], dfl_loss=1.1),
        ),
        Case(
            "a mask loss without masks",
            "note",
            parts(150, instances=3, box_loss=[2.0 - n / 100 for n in range(150)], cls_loss=1.5, sem_loss=0.0),
        ),
        Case(
            "one part is solved",
            "note",
            parts(20, instances=3, box_loss=1.0, aux_loss=0.4),
            parts(150, first=21, instances=3, box_loss=[2.0 - n / 100 for n in range(150)], aux_loss=0.0),
        ),
        Case("no loss parts are known", None, losses(*[1.0] * 200)),
        Case(
            "a healthy results file",
            None,
            validations(train__box_loss=[1.2, 1.1], train__cls_loss=[3.3, 2.0], train__dfl_loss=[1.1, 1.0]),
        ),
    ],
)
