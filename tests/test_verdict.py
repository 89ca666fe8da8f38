"""The verdict's proofs, which checkpoints are usable, and what is told of a run: all from short histories."""

from __future__ import annotations

import pytest
from histories import seen

from holdfast.judge.explanation import explain
from holdfast.judge.history import TRACEBACK, ended, losses, started, trains
from holdfast.judge.picture import Picture
from holdfast.judge.usable import checkpoints, last_good
from holdfast.judge.verdict import proofs_of, verdict
from holdfast.words import events
from holdfast.words.verdicts import Outcome

FALLING = losses(*[10.0 / step for step in range(1, 101)])


def validations(*values, name="metrics/mAP50-95(B)", final=None):
    told = [
        events.Metrics(at=float(n), step=10 * n, epoch=n, values={name: value}, source="ultralytics")
        for n, value in enumerate(values, 1)
    ]
    if final is not None:
        told.append(events.Metrics(at=50.0, step=99, values={name: final}, source="ultralytics, best.pt at the end"))
    return told


def saved(path, step, matches="equal", bad=0):
    return events.Saved(at=50.0, step=step, path=path, tensors=4, compared=4, matches=matches, bad=bad)


def answers(picture):
    return {proof.name: proof.answer for proof in proofs_of(picture)}


@pytest.mark.parametrize(
    ("values", "final", "rose", "reproduced"),
    [
        ((0.01, 0.1, 0.3, 0.35), 0.36, "holds", "holds"),
        ((0.01, 0.1, 0.3, 0.35), 0.05, "holds", "fails"),
        ((0.3, 0.1, 0.2, 0.29), None, "missing", "does not apply"),
        ((0.1,), None, "does not apply", "does not apply"),
        ((), None, "does not apply", "does not apply"),
    ],
)
def test_metrics_prove_what_they_can(values, final, rose, reproduced):
    """A score that rose is a proof; one that the saved file does not reproduce is against it; none proves nothing."""
    picture = seen(started(), trains(), validations(*values, final=final), ended(0))
    assert (answers(picture)["metric-rose"], answers(picture)["metric-reproduced"]) == (rose, reproduced)


@pytest.mark.parametrize(
    ("reloaded", "answer"),
    [
        ({"loads": True, "tensors": 4}, "holds"),
        ({"loads": True, "tensors": 4, "bad": ["head.weight"]}, "fails"),
        ({"loads": False, "why": "RuntimeError: file is cut off"}, "fails"),
        (None, "does not apply"),
    ],
)
def test_learned_needs_a_checkpoint_that_loads(reloaded, answer):
    """Where one was saved and could be read back."""
    told = [] if reloaded is None else [events.Reloaded(at=60.0, path="m.pt", step=100, **reloaded)]
    picture = seen(started(), trains(), FALLING, [saved("m.pt", 100)], ended(0, last_step=100), told)
    assert answers(picture)["checkpoint-reloads"] == answer
    assert (verdict(picture).outcome is Outcome.LEARNED) == (answer != "fails")


def test_checkpoints_from_before_the_fault_are_good():
    """A NaN at step 11 spoils what was saved from there on, and nothing before it."""
    picture = seen(
        started(),
        trains(),
        losses(*[1.0] * 10),
        [saved("a.pt", 10)],
        losses(*["nan"] * 10, first=11),
        [saved("b.pt", 15), saved("c.pt", 20, bad=4)],
        ended(signal="SIGTERM", last_step=20, stopped_by="loss-not-finite"),
    )
    assert [(c.path, c.usable) for c in checkpoints(picture)] == [("a.pt", True), ("b.pt", False), ("c.pt", False)]
    good = last_good(picture)
    assert good is not None
    assert (good.path, good.step) == ("a.pt", 10)
    assert "a.pt" in explain(picture).next_steps[0].text


def test_all_checkpoints_of_a_run_that_never_learned_are_marked():
    """The first field report: files were made, and nothing was in them."""
    picture = seen(started(), trains(), losses(*[0.0] * 30), [saved("best.pt", 25)], ended(0, last_step=30))
    assert [c.usable for c in checkpoints(picture)] == [False]
    assert "loss-all-zero" in checkpoints(picture)[0].why


def test_torn_checkpoint_is_not_usable():
    vaulted = events.Vaulted(at=99.0, attempt=1, files=[events.VaultedFile("m.pt", "saved/m.pt", 10, 5, torn=True)])
    picture = seen(started(), trains(), losses(1.0), [saved("m.pt", 5)], ended(signal="SIGKILL"), [vaulted])
    assert not checkpoints(picture)[0].usable


def test_explanation_of_a_crash_names_cause_and_next_step():
    picture = seen(started(), trains(), losses(1.0), ended(1, words=[*TRACEBACK, "ValueError: bad shape"]))
    told = explain(picture)
    assert (told.cause, told.confidence) == ("python-exception", "proven")
    assert "bad shape" in " ".join(told.story)
    assert told.next_steps


def test_explanation_says_what_was_not_recorded():
    """Without exit code and signal nothing is concluded about how it ended."""
    told = explain(seen(started(), trains(), losses(1.0, 0.9), ended(None, last_step=2)))
    assert (told.cause, told.confidence) == (None, "unknown")
    assert any("neither an exit code nor a signal" in open_question for open_question in told.unknown)


def test_stopped_run_says_how_to_let_it_run_on():
    """Whoever disagrees with a finding gets the command for it."""
    picture = seen(
        started(), trains(), losses(*[0.0] * 20), ended(signal="SIGTERM", last_step=20, stopped_by="loss-all-zero")
    )
    commands = [step.command for step in explain(picture).next_steps if step.command]
    assert commands == ["holdfast run --rule loss-all-zero=warn -- python train.py"]


def test_explanation_of_nothing():
    assert explain(Picture()).story == ["Nothing was started."]


@pytest.mark.parametrize(
    ("history", "proof", "answer"),
    [
        # Other weights were saved than those that were trained.
        ([*FALLING, saved("m.pt", 100, matches="differs")], "saved-equals-live", "fails"),
        # A schedule for a thousand steps, a hundred made.
        (
            [*FALLING, events.Schedule(at=100.0, step=100, scheduler="OneCycleLR", planned=1000, done=100)],
            "planned-steps-done",
            "fails",
        ),
        # It leapt to ninety times what it was, and fell a little from there.
        (losses(1.0, *[90.0 * 0.999**n for n in range(150)]), "loss-fell", "fails"),
        # It leapt and came down to three times what it was.
        (losses(1.0, *[90.0 * 0.965**n for n in range(99)]), "loss-fell", "missing"),
        (FALLING, "loss-fell", "holds"),
    ],
)
def test_no_proof_holds_beside_what_contradicts_it(history, proof, answer):
    """The training may have gone well, but `learned` promises that all that applies was kept."""
    picture = seen(started(), trains(), history, ended(0, last_step=100))
    assert answers(picture)[proof] == answer
    assert (verdict(picture).outcome is Outcome.LEARNED) == (answer == "holds")


def test_a_table_of_epochs_shows_that_the_loss_fell():
    """A run that Holdfast never saw has no steps; its components together are the loss."""
    table = [
        events.Metrics(
            at=float(n),
            step=10 * n,
            epoch=n,
            values={"train/box_loss": 3 - 0.05 * n, "train/cls_loss": 2 - 0.04 * n},
            source="csv",
        )
        for n in range(1, 31)
    ]
    proof = next(proof for proof in proofs_of(seen(started(), table, ended(0))) if proof.name == "loss-fell")
    assert (proof.answer, proof.detail[:33]) == ("holds", "the loss fell from 4.82 to 2.39 (")
