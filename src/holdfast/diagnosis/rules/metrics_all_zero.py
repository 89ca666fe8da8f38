"""Every score of every validation is exactly zero.

**What it means.** Precision, recall, mAP or whatever is measured has never been anything but 0. In the first epochs of a model
that starts from nothing this is usual. At the end of a training it says that the model that was saved finds nothing, however well
the command ended.

**Why it happens.** The model did not learn (see loss-all-zero and loss-component-zero). Or it did, and the validation is at fault:
half precision on a device that cannot do it (ultralytics 8.0.142 with torch 2.0.1), labels of the validation set that do not match
the classes, a confidence threshold above all predictions, an NMS that ran out of its time.

**What to do.** Where only some dozens of steps were made, or a few hundred in which the losses fall, train longer: a detector that starts from nothing finds
nothing before that. Else validate the checkpoint on the CPU, where another device trained: `yolo val model=best.pt device=cpu`. If that
is not 0, the device is at fault. If it is, look at the predictions of a few training images at a low confidence (`conf=0.001`).

**What it needs to see.** A note after 3 validations. A warning where the loss has clearly fallen all the same, after 10 validations
and 30% of the planned epochs (20 validations where the plan is not known). Fatal where the command ended well after 5 validations
or more, or where the losses are exactly 0 too.

**When it stays silent.** As soon as one score of one validation was not 0, and where no score is measured: losses are no scores.

Sources: ultralytics#3962, ultralytics#9113, ultralytics/hub#1199; the first field report ended with exit code 0 and all metrics 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import is_known_score, is_loss, is_score, is_train, newest_of, over_attempts
from holdfast.diagnosis.devices import device_kind
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.series import fall
from holdfast.schema import events
from holdfast.schema.events import as_number
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started
from holdfast.testing.series import epoch, final, steps, validations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.aggregators import Metrics
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.diagnosis.series import Series
    from holdfast.schema.verdicts import Severity

LIMITS = {
    "validations": 3,
    "validations_to_warn": 10,
    "share_to_warn": 0.3,
    "validations_without_a_plan": 20,
    "validations_of_a_whole_run": 5,
    "few_steps": 300,
}
VERY_FEW_STEPS = 100
"""Fewer than this are the likeliest reason, whether or not a fall of the loss can be told from noise by then."""
ZERO_EPOCHS = 2
ZERO_STEPS = 20


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    several = state.validated
    newest = newest_of(several)
    names = newest.scores() if newest is not None else []
    if (
        newest is None
        or not names
        or not all(newest.tracks[name].all_zero for name in names)
        or _again_not_zero(newest)
    ):
        return None
    tracks = [over_attempts(several, name) for name in names]
    if not all(track.all_zero for track in tracks):
        return None
    count = max(len(track.points) for track in tracks)
    zero_losses = _losses_are_zero(attempt)
    limits = state.tuned("metrics-all-zero", LIMITS)
    severity = _severity(attempt, count, limits, zero_losses=bool(zero_losses))
    if severity is None:
        return None
    if not any(map(is_known_score, names)):  # who knows what it counts: it may be best at 0
        severity = "note"
    fell, steps = _fell(state.loss), attempt.last_step
    ended_well = attempt.finished and not zero_losses
    very_few = ended_well and 0 < steps < VERY_FEW_STEPS
    brief = very_few or (ended_well and 0 < steps < limits["few_steps"] and fell)
    ending = {
        "fatal": "it ended well, and what it saved finds nothing" if attempt.finished else "and so are the losses",
        "warn": "although the loss has fallen",
        "note": "which is usual in the first epochs only",
    }[severity]
    if brief and severity == "fatal":
        ending = (
            f"{'the loss has fallen, but ' if fell else ''}{steps} steps are few, and what was saved finds nothing yet"
        )
    return Finding(
        rule="metrics-all-zero",
        severity=severity,
        message=f"Every score is exactly 0 in all {count} validations: {ending}.",
        evidence=[
            f"{name} is 0 in {len(track.points)} of {len(track.points)} validations"
            for name, track in zip(names[:4], tracks, strict=False)
        ]
        + ([zero_losses] if zero_losses else [])
        + ([f"{steps} optimizer steps were made in all{_accumulated(attempt)}"] if brief else []),
        remedies=_remedies(attempt, brief=brief, fell=fell, unknown=ended_well and not steps),
        confidence="proven" if severity == "fatal" and not very_few else "possible",
        corrupt_from=attempt.first_step if severity == "fatal" else None,
    )


def _remedies(attempt: AttemptState, *, brief: bool, fell: bool, unknown: bool) -> list[str]:
    device = device_kind(attempt, attempt.settings)
    on_the_cpu = "validate the checkpoint on the CPU (yolo val model=best.pt device=cpu): if that is not 0, the device is at fault"
    longer = f"train longer: {attempt.last_step} steps are very few{', and the loss was falling' if fell else ''}"
    return [
        *([longer] if brief else []),
        *(["train longer, if it made only a few hundred steps of its optimizer"] if unknown else []),
        *([on_the_cpu] if device not in ("cpu", "") else []),
        "look at predictions of training images at a low confidence (conf=0.001)",
        "check that the labels of the validation set have the same classes",
        *([f"if it was not trained on the CPU, {on_the_cpu}"] if not device else []),
    ]


def _accumulated(attempt: AttemptState) -> str:
    batch, nominal = attempt.settings.get("batch"), attempt.settings.get("nbs")
    if not isinstance(batch, int) or not isinstance(nominal, int) or not 0 < 2 * batch <= nominal:
        return ""
    return f": with batch={batch} and nbs={nominal}, {round(nominal / batch)} batches go into each"


def _severity(attempt: AttemptState, count: int, limits: Mapping[str, float], *, zero_losses: bool) -> Severity | None:
    if zero_losses or (attempt.finished and count >= limits["validations_of_a_whole_run"]):
        return "fatal"
    planned = attempt.planned_epochs
    enough = (
        limits["validations_without_a_plan"]
        if planned is None
        else max(limits["validations_to_warn"], limits["share_to_warn"] * planned)
    )
    if count >= enough and _fell(attempt.loss):
        return "warn"
    return "note" if count >= limits["validations"] else None


def _fell(loss: Series) -> bool:
    move = fall(loss)
    return move is not None and move.beyond_noise


def _again_not_zero(metrics: Metrics) -> bool:
    """The checkpoint's own validation at the end found something."""
    last = metrics.final
    return last is not None and any(as_number(value) for name, value in last.values.items() if is_score(name))


def _losses_are_zero(attempt: AttemptState) -> str | None:
    """Evidence that they are, by step or by epoch."""
    loss = attempt.loss
    if loss.zeros_at_first == loss.count >= ZERO_STEPS and not attempt.gradients.seen_nonzero:
        return f"the loss is 0 in all {loss.count} steps"
    tracks = [track for name, track in attempt.metrics.tracks.items() if is_loss(name) and is_train(name)]
    newest = [[point.value for point in track.points[-ZERO_EPOCHS:]] for track in tracks]
    if newest and all(len(values) == ZERO_EPOCHS and not any(values) for values in newest):
        return f"every training loss is 0 in the last {ZERO_EPOCHS} epochs"
    return None


def _nothing(count: int, first: int = 1) -> list[events.AnyEvent]:
    return validations(
        first=first, metrics__precision=[0.0] * count, metrics__mAP50=[0.0] * count, fitness=[0.0] * count
    )


FALLS = steps(*[3.0 - n / 100 for n in range(200)])
RULE = Rule(
    id="metrics-all-zero",
    kind="learning",
    on=(events.Metrics, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    retractable=True,
    cases=[
        Case("ended well with nothing", [*started(), *FALLS, *_nothing(10), *ended(0, last_step=200)], "fatal"),
        Case(
            "the first field report's results",
            [
                *started(),
                *validations(train__box_loss=[0.0] * 4, train__cls_loss=[3.4, 0.0, 0.0, 0.0], metrics__mAP50=[0.0] * 4),
            ],
            "fatal",
        ),
        Case(
            "a loss that falls, in few steps",
            [*started(), *FALLS[:48], *_nothing(6), *ended(0, last_step=48)],
            "fatal",
        ),
        Case("losses are zero too", [*started(), *losses(*[0.0] * 20), *_nothing(1)], "fatal"),
        Case(
            "the loss falls, a third of the plan is done",
            [*started(), *FALLS, *epoch(10, step=200, planned=30, source="ultralytics"), *_nothing(10)],
            "warn",
        ),
        Case("three validations", [*started(), *FALLS, *_nothing(3)], "note"),
        Case(
            "a smoke test of three epochs",
            [*started(), *FALLS, *_nothing(3), *ended(0, last_step=200)],
            "note",
        ),
        Case(
            "ten of a hundred epochs",
            [*started(), *FALLS, *epoch(10, step=200, planned=100, source="ultralytics"), *_nothing(10)],
            "note",
        ),
        Case("the first two", [*started(), *FALLS, *_nothing(2)], None),
        Case(
            "one was not",
            [*started(), *validations(metrics__mAP50=[0.0, 0.0, 0.01, 0.0, 0.0, 0.0]), *ended(0, last_step=60)],
            None,
        ),
        Case(
            "the checkpoint finds something in the end: taken back",
            [*started(), *_nothing(6), *final(metrics__mAP50=0.4), *ended(0, last_step=60)],
            None,
        ),
        Case(
            "losses only",
            [*started(), *validations(val__loss=[0.0] * 9, lr__pg0=[0.0] * 9), *ended(0, last_step=90)],
            None,
        ),
    ],
)
