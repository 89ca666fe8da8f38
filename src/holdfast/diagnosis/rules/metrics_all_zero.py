"""Every score of every validation is exactly zero.

**What it means.** Precision, recall, mAP and every other score have been 0 in all validations. This is usual in the
first epochs of a model that is trained from scratch. At the end of a run it means that the saved model predicts nothing
correctly, even though the command succeeded.

**Why it happens.** The model did not learn (see loss-all-zero and loss-component-zero). Or the model learned, but
validation is wrong. Possible causes are half precision on a device that does not support it (ultralytics 8.0.142 with
torch 2.0.1), validation labels that do not match the classes, a confidence threshold above all predictions, or
non-maximum suppression that exceeded its time limit (see nms-cut-short).

**What to do.** If the run took only a few dozen steps, or a few hundred steps in which the loss fell, train longer: a
detector that is trained from scratch detects nothing that early. In a longer run, if you did not train on the CPU,
validate the checkpoint there: `yolo val model=best.pt device=cpu`. If the score is not 0 on the CPU, the device is the
cause. If it is 0, inspect the predictions for a few training images at a low confidence threshold (`conf=0.001`).

**Severity.** The severity depends on the number of validations:

- It is reported as a `note` after 3 validations.
- It is reported as `warn` if the loss has clearly fallen, after 10 validations and 30% of the planned epochs (after 20
  validations if the number of epochs is unknown).
- It is reported as `fatal` if the command succeeded after 5 validations or more, or if the losses are exactly 0 too.
- It is reported as a `note` in all of these cases if no score has a well-known name such as mAP or accuracy, because an
  unknown score may be best at 0.

**When it is not reported.** Nothing is reported once any score of any validation is nonzero, or if no score is
measured. Losses are not scores.

Sources: ultralytics#3962, ultralytics#9113, ultralytics/hub#1199. In one reported case, a run ended with exit status 0
and all metrics at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import is_known_score, is_loss, is_score, is_train, newest_of, over_attempts
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.series import fall
from holdfast.schema import events
from holdfast.schema.events import as_number
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started
from holdfast.testing.series import FRAMEWORK, epoch, final, steps, validations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.aggregators.metrics import Metrics
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
"""Fewer steps than this are the most likely reason, whether or not a falling loss can be distinguished from noise yet."""
ZERO_EPOCHS = 2
ZERO_STEPS = 20


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    by_attempt = state.validated
    newest = newest_of(by_attempt)
    names = newest.scores() if newest is not None else []
    if (
        newest is None
        or not names
        or not all(newest.tracks[name].all_zero for name in names)
        or _has_nonzero_final_score(newest)
    ):
        return None
    tracks = [over_attempts(by_attempt, name) for name in names]
    if not all(track.all_zero for track in tracks):
        return None
    count = max(len(track.points) for track in tracks)
    zero_losses = _find_zero_losses(attempt)
    limits = state.get_limits("metrics-all-zero", LIMITS)
    severity = _choose_severity(attempt, count, limits, zero_losses=bool(zero_losses))
    if severity is None:
        return None
    if not any(map(is_known_score, names)):  # an unknown score may be best at 0
        severity = "note"
    has_fallen, steps = _has_fallen(state.loss), attempt.last_step
    succeeded = attempt.finished and not zero_losses
    has_very_few_steps = succeeded and 0 < steps < VERY_FEW_STEPS
    is_brief = has_very_few_steps or (succeeded and 0 < steps < limits["few_steps"] and has_fallen)
    explanation = {
        "fatal": ": the command succeeded, but the saved model predicts nothing correctly"
        if attempt.finished
        else ", and the losses are 0 too",
        "warn": ", although the loss has fallen",
        "note": ", which is usual only in the first epochs",
    }[severity]
    if is_brief and severity == "fatal":
        explanation = f": {'the loss has fallen, but ' if has_fallen else ''}{steps} steps are few, and the saved model predicts nothing correctly yet"
    return Finding(
        severity=severity,
        message=f"Every score is exactly 0 in all {count} validations{explanation}.",
        evidence=[
            f"{name} is 0 in {len(track.points)} of {len(track.points)} validations"
            for name, track in zip(names[:4], tracks, strict=False)
        ]
        + ([zero_losses] if zero_losses else [])
        + ([f"{steps} optimizer steps in total{_describe_accumulation(attempt)}"] if is_brief else []),
        remedies=_select_remedies(
            state, is_brief=is_brief, has_fallen=has_fallen, steps_unknown=succeeded and not steps
        ),
        confidence="proven" if severity == "fatal" and not has_very_few_steps else "possible",
        corrupt_from=attempt.first_step if severity == "fatal" else None,
    )


def _select_remedies(state: RunState, *, is_brief: bool, has_fallen: bool, steps_unknown: bool) -> list[str]:
    attempt = state.attempt
    device = attempt.find_device(attempt.settings).kind
    on_the_cpu = f"validate the checkpoint on the CPU{hint(state, 'validate-on-cpu')}: if the score is not 0 there, the device is the cause"
    train_longer = (
        f"train longer: {attempt.last_step} steps are very few{', and the loss was falling' if has_fallen else ''}"
    )
    return [
        *([train_longer] if is_brief else []),
        *(["train longer, if the optimizer made only a few hundred steps"] if steps_unknown else []),
        *([on_the_cpu] if device.is_accelerator else []),
        f"inspect the predictions for training images at a low confidence threshold{hint(state, 'low-threshold')}",
        "check that the labels of the validation set use the same classes",
        *([f"if the model was not trained on the CPU, {on_the_cpu}"] if not device.name else []),
    ]


def _describe_accumulation(attempt: AttemptState) -> str:
    batch, nominal = attempt.settings.get("batch"), attempt.settings.get("nbs")
    if not isinstance(batch, int) or not isinstance(nominal, int) or not 0 < 2 * batch <= nominal:
        return ""
    return f": with batch={batch} and nbs={nominal}, each step accumulates {round(nominal / batch)} batches"


def _choose_severity(
    attempt: AttemptState, count: int, limits: Mapping[str, float], *, zero_losses: bool
) -> Severity | None:
    if zero_losses or (attempt.finished and count >= limits["validations_of_a_whole_run"]):
        return "fatal"
    planned = attempt.planned_epochs
    enough = (
        limits["validations_without_a_plan"]
        if planned is None
        else max(limits["validations_to_warn"], limits["share_to_warn"] * planned)
    )
    if count >= enough and _has_fallen(attempt.loss):
        return "warn"
    return "note" if count >= limits["validations"] else None


def _has_fallen(loss: Series) -> bool:
    fall_of_loss = fall(loss)
    return fall_of_loss is not None and fall_of_loss.beyond_noise


def _has_nonzero_final_score(metrics: Metrics) -> bool:
    """Return whether the final validation of the checkpoint has a nonzero score."""
    last = metrics.final
    return last is not None and any(as_number(value) for name, value in last.values.items() if is_score(name))


def _find_zero_losses(attempt: AttemptState) -> str | None:
    """Return evidence that all losses are zero, by step or by epoch, or None if they are not."""
    loss = attempt.loss
    if loss.zeros_at_first == loss.count >= ZERO_STEPS and not attempt.gradients.seen_nonzero:
        return f"the loss is 0 in all {loss.count} steps"
    tracks = [track for name, track in attempt.metrics.tracks.items() if is_loss(name) and is_train(name)]
    newest = [[point.value for point in track.points[-ZERO_EPOCHS:]] for track in tracks]
    if newest and all(len(values) == ZERO_EPOCHS and not any(values) for values in newest):
        return f"every training loss is 0 in the last {ZERO_EPOCHS} epochs"
    return None


def _make_zero_scores(count: int, first: int = 1) -> list[events.AnyEvent]:
    return validations(
        first=first, metrics__precision=[0.0] * count, metrics__mAP50=[0.0] * count, fitness=[0.0] * count
    )


FALLING = steps(*[3.0 - n / 100 for n in range(200)])
RULE = Rule(
    kind="learning",
    on=(events.Metrics, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    retractable=True,
    corrupts_state=True,
    suspects_device=True,
    charts=("metrics", "validation-loss"),
    remedies=("next-device",),
    cases=lambda: [
        Case(
            "the command succeeded with all scores at 0",
            [*started(), *FALLING, *_make_zero_scores(10), *ended(0, last_step=200)],
            "fatal",
        ),
        Case(
            "box and class losses and all scores are 0 after the first epoch",
            [
                *started(),
                *validations(train__box_loss=[0.0] * 4, train__cls_loss=[3.4, 0.0, 0.0, 0.0], metrics__mAP50=[0.0] * 4),
            ],
            "fatal",
        ),
        Case(
            "a falling loss in few steps",
            [*started(), *FALLING[:48], *_make_zero_scores(6), *ended(0, last_step=48)],
            "fatal",
        ),
        Case("the losses are zero too", [*started(), *losses(*[0.0] * 20), *_make_zero_scores(1)], "fatal"),
        Case(
            "the loss falls and a third of the planned epochs is done",
            [*started(), *FALLING, *epoch(10, step=200, planned=30, source=FRAMEWORK), *_make_zero_scores(10)],
            "warn",
        ),
        Case("three validations", [*started(), *FALLING, *_make_zero_scores(3)], "note"),
        Case(
            "a smoke test of three epochs",
            [*started(), *FALLING, *_make_zero_scores(3), *ended(0, last_step=200)],
            "note",
        ),
        Case(
            "ten of a hundred epochs",
            [*started(), *FALLING, *epoch(10, step=200, planned=100, source=FRAMEWORK), *_make_zero_scores(10)],
            "note",
        ),
        Case("the first two validations", [*started(), *FALLING, *_make_zero_scores(2)], None),
        Case(
            "a score that was nonzero once",
            [*started(), *validations(metrics__mAP50=[0.0, 0.0, 0.01, 0.0, 0.0, 0.0]), *ended(0, last_step=60)],
            None,
        ),
        Case(
            "the final validation of the checkpoint is not 0, so the finding is withdrawn",
            [*started(), *_make_zero_scores(6), *final(metrics__mAP50=0.4), *ended(0, last_step=60)],
            None,
        ),
        Case(
            "only losses are measured",
            [*started(), *validations(val__loss=[0.0] * 9, lr__pg0=[0.0] * 9), *ended(0, last_step=90)],
            None,
        ),
    ],
)
