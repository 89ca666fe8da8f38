"""Series: bounded in memory, exact in what they count."""

from __future__ import annotations

import math

import msgspec
import pytest

from holdfast.diagnosis.aggregators.losses import LearningRates, Losses
from holdfast.diagnosis.aggregators.metrics import Metrics, best_of, is_known_score, is_score, over_attempts
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.rules.loss_constant import has_few_digits
from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.series import Series, fall
from holdfast.diagnosis.verdict import verdict
from holdfast.schema import events
from holdfast.schema.verdicts import Outcome
from holdfast.storage.journal import Entry
from holdfast.testing.histories import ended, entries, started, window
from holdfast.testing.series import final, parts, steps, validations


def test_memory_is_bounded_and_the_mean_exact():
    series = Series(most=64)
    for n in range(100_000):
        series.add(n, float(n % 10))
    assert len(series.points) <= 65
    assert series.count == 100_000
    assert series.zeros == 10_000
    total = sum(point.mean * point.n for point in series.points)
    assert math.isclose(total / series.count, 4.5)
    assert (min(p.low for p in series.points), max(p.high for p in series.points)) == (0.0, 9.0)


def test_values_that_are_not_finite_are_counted_apart():
    series = Series()
    for step, value in enumerate([1.0, math.nan, math.inf, 2.0, -math.inf], 1):
        series.add(step, value)
    assert (series.count, series.nonfinite, series.first_nonfinite_step, series.nonfinite_in_a_row) == (2, 3, 2, 1)


def test_fall_is_measured_against_its_own_noise():
    down, flat, up = Series(), Series(), Series()
    for n in range(200):
        jitter = 0.3 * math.sin(n * 12.9898)
        down.add(n, 2.0 - 0.01 * n + jitter)
        flat.add(n, 2.0 + jitter)
        up.add(n, 2.0 + 0.01 * n + jitter)
    assert fall(down).beyond_noise
    assert not fall(flat).beyond_noise
    assert not fall(up).beyond_noise
    assert fall(Series()) is None


def test_fall_of_negative_losses():
    series = Series()
    for n in range(100):
        series.add(n, -0.1 * n)
    assert fall(series).beyond_noise


# --- what monitors make of them ---------------------------------------------------------------------------------------


def folded(*steps):
    losses, rates = Losses(), LearningRates()
    for event in steps:
        losses.fold(event)
        rates.fold(event)
    return losses, rates


def test_components_on_images_without_objects_do_not_count_as_zero():
    """Box may rightly be 0 where nothing is labelled; only labelled steps speak."""
    losses, _ = folded(*parts(5, instances=0, box_loss=0.0), *parts(7, first=6, instances=3, box_loss=0.0))
    assert losses.parts["box_loss"].zeros_at_first == 12
    assert losses.labelled_zeros_at_first["box_loss"] == 7
    assert losses.objects == 21


def test_losses_count_as_constant_only_under_a_learning_rate():
    """Steps at rate zero do not count, a window counts whole, and another value begins anew."""
    losses, _ = folded(*steps(*[1.5] * 30, rate=0.0))
    assert losses.same_at_rate == 0
    for event in (*steps(*[1.5] * 4, first=31), *window(35, 50, 1.5)):
        losses.fold(msgspec.structs.replace(event, lr=[0.1]))
    assert losses.same_at_rate == 20
    losses.fold(steps(1.6, first=51)[0])
    assert losses.same_at_rate == 1


def test_losses_far_above_the_first_ones_are_counted_in_a_row():
    losses, _ = folded(*steps(*[1.0] * 20, *[50.0] * 7))
    assert losses.far_steps == 7
    losses.fold(steps(5.0, first=28)[0])
    assert losses.far_steps == 0


def test_rate_vanishes_against_its_own_peak():
    """One that is low but alive has not vanished, and warm-up takes it back."""
    _, rates = folded(*steps(*[1.0] * 3, rate=[0.0, 0.1, 0.1]))
    assert rates.vanished_steps == 0
    for event in steps(1.0, 1.0, 1.0, first=4, rate=[1e-8, 1e-10, 0.0]):
        rates.fold(event)
    assert (rates.vanished_steps, rates.vanished_since) == (2, 5)


def metrics_of(*histories):
    made = []
    for history in histories:
        made.append(Metrics())
        for event in history:
            made[-1].fold(event)
    return made


def test_best_epoch_is_that_of_the_score_that_chooses():
    """Fitness before accuracy before others; the first of equals; a validation loss where there is no score."""
    both = metrics_of(validations(metrics__precision=[0.9, 0.1, 0.2], fitness=[0.1, 0.3, 0.3]))
    assert best_of(both) == ("fitness", 2, 0.3, 1, True)
    loss = metrics_of(validations(val__loss=[3.0, 1.0, 2.0], lr__pg0=[9.0, 9.0, 9.0], perplexity=[4.0, 2.0, 3.0]))
    assert best_of(loss) == ("val/loss", 2, 1.0, 1, False)
    assert best_of(metrics_of([], validations(fitness=[0.0, 0.0]))) is None
    assert best_of([]) is None


def test_best_epoch_outlives_a_restart():
    """What a later attempt did again replaces what it was before; what it did not stays."""
    several = metrics_of(validations(fitness=[0.1, 0.6, 0.2]), validations(first=3, fitness=[0.4, 0.5]))
    assert [(point.epoch, point.value) for point in over_attempts(several, "fitness").points] == [
        (1, 0.1),
        (2, 0.6),
        (3, 0.4),
        (4, 0.5),
    ]
    assert best_of(several)[:4] == ("fitness", 2, 0.6, 2)
    assert best_of(metrics_of(validations(fitness=[0.1, 0.6]), validations(fitness=[0.2])))[1:3] == (1, 0.2)


def test_several_trainings_in_one_process_are_not_mixed():
    """When epochs begin again, so does the record; the last validation of a checkpoint belongs to none."""
    (metrics,) = metrics_of([*validations(fitness=[0.5, 0.6]), *final(fitness=0.61), *validations(fitness=[0.1])])
    assert [point.value for point in metrics.series("fitness")] == [0.1]
    assert metrics.final is None


def test_validations_are_bounded_in_memory():
    (metrics,) = metrics_of(validations(fitness=[n / 9000 for n in range(5000)]))
    assert len(metrics.history) <= 2048
    assert best_of([metrics])[1] == 5000
    assert metrics.series("fitness")[0].epoch == 1


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("metrics/mAP50-95(B)", True),
        ("metrics/precision(B)", True),
        ("val_acc", True),
        ("eval_f1", True),
        ("success_rate", False),
    ],
)
def test_scores_are_known_by_their_names(name, known):
    assert is_score(name)
    assert is_known_score(name) == known


@pytest.mark.parametrize(
    "name",
    [
        "val/box_loss",
        "lr/pg0",
        "lr-Adam",
        "time",
        "eval_runtime",
        "eval_samples_per_second",
        "perplexity",
        "val_rmse",
        "train_acc",
        "train/accuracy",
        "learning_rate",
        "grad_norm",
        "epoch",
    ],
)
def test_what_is_better_when_lower_is_no_score(name):
    assert not is_score(name)


def test_boxes_that_are_never_matched_are_found_within_twenty_steps():
    """The first field report's first sign, by the number of labelled objects or without it."""
    for instances, step in ((16, 10), (None, 20)):
        found = [
            (finding.rule, finding.severity, finding.step)
            for finding in findings_of(
                [*started(), *parts(25, instances=instances, box_loss=0.0, cls_loss=3.4, dfl_loss=0.0)]
            )
        ]
        assert found == [("loss-component-zero", "fatal", step)]


def test_run_that_ends_well_with_no_score_has_not_learned():
    """Exit 0 with all metrics 0, although the loss fell."""
    history = [
        *started(),
        *steps(*[3.0 - n / 100 for n in range(200)]),
        *validations(metrics__mAP50=[0.0] * 10),
        *ended(0, last_step=200),
    ]
    state = RunState()
    engine = Engine(state)
    for entry in entries(history):
        for finding in engine.take(entry):
            state.fold(Entry(events.FindingMade(at=0.0, finding=finding), 1))
    assert verdict(state).outcome is Outcome.NOT_LEARNED


def test_half_precision_is_recognised_as_it_is_written():
    """With nine digits, as the journal has it, and as a mean over accumulated steps."""
    for value in (10.8125, 1.0, 0.5, 0.0123291016, 2.765625):
        assert has_few_digits(value)
    for value in (2.30258512, 0.693147182, 3.14159274):
        assert not has_few_digits(value)


def findings_of(history):
    engine = Engine(RunState())
    return [finding for entry in entries(history) for finding in engine.take(entry)][:1]
