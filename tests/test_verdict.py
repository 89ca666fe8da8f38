"""The verdict's proofs, which checkpoints are usable, and what is told of a run: all from short histories."""

from __future__ import annotations

import pytest
from histories import seen

from holdfast.diagnosis.checkpoints import checkpoints, last_good
from holdfast.diagnosis.explanation import explain
from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.verdict import collect_proofs, verdict
from holdfast.schema import events
from holdfast.schema.verdicts import Action, Decision, Outcome
from holdfast.testing.histories import TRACEBACK, ended, losses, started, trains

FALLING = losses(*[10.0 / step for step in range(1, 101)])


def validations(*values, name="metrics/mAP50-95(B)", final=None):
    told = [
        events.Metrics(at=float(n), step=10 * n, epoch=n, values={name: value}, source="ultralytics")
        for n, value in enumerate(values, 1)
    ]
    if final is not None:
        told.append(events.Metrics(at=50.0, step=99, values={name: final}, source="ultralytics, best.pt at the end"))
    return told


def saved(path, step, matches="equal", nonfinite=0):
    return events.Saved(at=50.0, step=step, path=path, tensors=4, compared=4, matches=matches, nonfinite=nonfinite)


def answers(state):
    return {proof.name: proof.answer for proof in collect_proofs(state)}


@pytest.mark.parametrize(
    ("values", "final", "rose", "reproduced"),
    [
        ((0.01, 0.1, 0.3, 0.35), 0.36, "holds", "holds"),
        ((0.01, 0.1, 0.3, 0.35), 0.05, "holds", "fails"),
        ((0.0, 0.0, 0.0), 0.0, "missing", "does not apply"),
        ((0.3, 0.1, 0.2, 0.29), None, "missing", "does not apply"),
        ((0.1,), None, "does not apply", "does not apply"),
        ((), None, "does not apply", "does not apply"),
    ],
)
def test_metrics_prove_what_they_can(values, final, rose, reproduced):
    """A score that rose is a proof; one that the saved file does not reproduce is against it; none proves nothing."""
    state = seen(started(), trains(), validations(*values, final=final), ended(0))
    assert (answers(state)["metric-rose"], answers(state)["metric-reproduced"]) == (rose, reproduced)


@pytest.mark.parametrize(
    ("reloaded", "answer"),
    [
        ({"loads": True, "tensors": 4}, "holds"),
        ({"loads": True, "tensors": 4, "nonfinite": ["head.weight"]}, "fails"),
        ({"loads": False, "why": "RuntimeError: file is cut off"}, "fails"),
        (None, "does not apply"),
    ],
)
def test_learned_needs_a_checkpoint_that_loads(reloaded, answer):
    """Where one was saved and could be read back."""
    told = [] if reloaded is None else [events.Reloaded(at=60.0, path="m.pt", step=100, **reloaded)]
    state = seen(started(), trains(), FALLING, [saved("m.pt", 100)], ended(0, last_step=100), told)
    assert answers(state)["checkpoint-reloads"] == answer
    assert (verdict(state).outcome is Outcome.LEARNED) == (answer != "fails")


@pytest.mark.parametrize(
    ("of", "said"), [(13, "only the newest 2 of 13 checkpoints were reloaded"), (2, "all finite"), (0, "all finite")]
)
def test_the_proof_says_how_many_checkpoints_were_read_back(of, said):
    """Only the newest few are: it does not speak for the others."""
    told = [events.Reloaded(at=60.0, path=f"{n}.pt", step=n, loads=True, tensors=4, of=of) for n in (99, 100)]
    state = seen(started(), trains(), FALLING, [saved("100.pt", 100)], ended(0, last_step=100), told)
    (proof,) = [proof for proof in verdict(state).proofs if proof.name == "checkpoint-reloads"]
    assert proof.detail.endswith(said)


def test_checkpoints_from_before_the_fault_are_good():
    """A NaN at step 11 spoils what was saved from there on, and nothing before it."""
    state = seen(
        started(),
        trains(),
        losses(*[1.0] * 10),
        [saved("a.pt", 10)],
        losses(*["nan"] * 10, first=11),
        [saved("b.pt", 15), saved("c.pt", 20, nonfinite=4)],
        ended(signal="SIGTERM", last_step=20, rule="loss-not-finite"),
    )
    assert [(c.path, c.usable) for c in checkpoints(state)] == [("a.pt", True), ("b.pt", False), ("c.pt", False)]
    good = last_good(state)
    assert good is not None
    assert (good.path, good.step) == ("a.pt", 10)
    assert "a.pt" in explain(state).next_steps[0].text


def test_all_checkpoints_of_a_run_that_never_learned_are_marked():
    """The first field report: files were made, and nothing was in them."""
    state = seen(started(), trains(), losses(*[0.0] * 30), [saved("best.pt", 25)], ended(0, last_step=30))
    assert [c.usable for c in checkpoints(state)] == [False]
    assert "loss-all-zero" in checkpoints(state)[0].why


def test_torn_checkpoint_is_not_usable():
    backed_up = events.CheckpointsBackedUp(
        at=99.0, attempt=1, files=[events.BackedUpFile("m.pt", "saved/m.pt", 10, 5, torn=True)]
    )
    state = seen(started(), trains(), losses(1.0), [saved("m.pt", 5)], ended(signal="SIGKILL"), [backed_up])
    assert not checkpoints(state)[0].usable


def test_explanation_of_a_crash_names_cause_and_next_step():
    state = seen(started(), trains(), losses(1.0), ended(1, words=[*TRACEBACK, "ValueError: bad shape"]))
    told = explain(state)
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
    state = seen(started(), trains(), losses(*[0.0] * 20), ended(signal="SIGTERM", last_step=20, rule="loss-all-zero"))
    commands = [step.command for step in explain(state).next_steps if step.command]
    assert commands == ["holdfast run --rule loss-all-zero=warn -- python train.py"]


def test_explanation_of_nothing():
    assert explain(RunState()).story == ["Nothing was started."]


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
    state = seen(started(), trains(), history, ended(0, last_step=100))
    assert answers(state)[proof] == answer
    assert (verdict(state).outcome is Outcome.LEARNED) == (answer == "holds")


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
    proof = next(proof for proof in collect_proofs(seen(started(), table, ended(0))) if proof.name == "loss-fell")
    assert (proof.answer, proof.detail[:38]) == ("holds", "the loss decreased from 4.82 to 2.39 (")


def goes_on(step, how="framework"):
    resume = events.Resume(how=how, checkpoint=None if how == "start over" else "last.pt", step=step)
    return [events.AttemptStarted(at=100.0, attempt=2, pid=101, command=["python", "train.py"], resume=resume)]


def proof_of(state, name):
    return next(proof for proof in collect_proofs(state) if proof.name == name)


RISES = [7e-05, 0.01, 0.1, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.72, 0.73, 0.74]
LEVEL = [0.7508, 0.7567, 0.7512]


def epochs(first, values, final=None):
    """One validation an epoch, ten steps each, with a training loss beside the score."""
    told = [
        events.Metrics(
            at=float(n),
            step=10 * n,
            epoch=n,
            values={"fitness": value, "train/loss": 2.0 - value},
            source="ultralytics",
        )
        for n, value in enumerate(values, first)
    ]
    return told + ([events.Metrics(at=200.0, step=150, values={"fitness": final}, source="end")] if final else [])


def test_a_score_is_looked_at_over_the_whole_run():
    """A kill near the end leaves a level to the last attempt: it rose before. An epoch that is made again counts once."""
    killed = [*started(), *trains(), *epochs(1, [*RISES, 0.9]), *ended(signal="SIGKILL", last_step=130)]
    whole = seen(killed, goes_on(120), trains(), epochs(13, LEVEL, final=0.757), ended(0, last_step=150))
    rose = proof_of(whole, "metric-rose")
    assert (rose.answer, rose.detail) == ("holds", "fitness rose from 7e-05 to 0.7567 over 15 validations")
    assert proof_of(whole, "loss-fell").answer == "holds"
    assert "1 losses" not in proof_of(whole, "loss-fell").detail


def test_a_start_over_is_another_training():
    """What an attempt reached that was given up proves nothing of the one that began anew, however seldom that validates."""
    killed = [*started(), *trains(), *epochs(1, RISES), *ended(signal="SIGKILL", last_step=120)]
    anew = seen(killed, goes_on(0, "start over"), trains(), epochs(5, LEVEL), ended(0, last_step=150))
    rose = proof_of(anew, "metric-rose")
    assert (rose.answer, rose.detail) == ("missing", "fitness did not improve significantly: from 0.7508 to 0.7512")


def test_the_best_of_an_earlier_attempt_is_what_the_file_is_held_against():
    killed = [*started(), *trains(), *epochs(1, [*RISES, 0.8]), *ended(signal="SIGKILL", last_step=130)]
    whole = seen(killed, goes_on(130), trains(), epochs(14, [0.3, 0.31], final=0.8), ended(0, last_step=150))
    assert proof_of(whole, "metric-reproduced").answer == "holds"


def test_validations_without_epochs_go_on_by_their_steps():
    """A loop of one's own numbers no epochs: its validations after a restart come after those before it."""

    def told(values, first):
        return [
            events.Metrics(at=float(n), step=10 * n, values={"val_accuracy": value}, source="scalars")
            for n, value in enumerate(values, first)
        ]

    killed = [*started(), *trains(), *told([0.1, 0.3, 0.5, 0.6], 1), *ended(signal="SIGKILL", last_step=40)]
    whole = seen(killed, goes_on(30, "snapshot"), trains(), told([0.61, 0.605, 0.6], 4), ended(0, last_step=60))
    assert "rose from 0.1 to 0.605 over 6 validations" in proof_of(whole, "metric-rose").detail


def test_an_attempt_that_is_over_before_its_first_look_takes_nothing_back():
    """Weights that were seen to move, and epochs that were done, stay so."""
    moved = events.WeightUpdates(at=5.0, step=50, checked=4, of=4, moved=4)
    epoch = events.Epoch(at=6.0, epoch=15, step=150, seconds=1.0, batches=10, planned=15, source="ultralytics")
    killed = [*started(), *trains(), *FALLING, moved, epoch, saved("last.pt", 150), *ended(signal="SIGKILL")]
    whole = seen(killed, goes_on(150), trains(), ended(0, last_step=150))
    told = answers(whole)
    assert (told["weights-moved"], told["planned-steps-done"], told["saved-equals-live"]) == ("holds",) * 3


def test_losses_before_a_state_that_was_given_up_count():
    """NaN from step 95 on, gone on from step 90 on: the fall was before it."""
    nan = [*started(), *trains(), *FALLING[:94], *losses(*["nan"] * 6, first=95)]
    stopped = ended(signal="SIGTERM", last_step=100, rule="loss-not-finite")
    back = events.DecisionMade(
        at=99.5, decision=Decision(action=Action.RESTART, attempt=1, why="it may be chance", discard_from=95)
    )
    level = losses(*[0.11 + 0.001 * (n % 3) for n in range(20)], first=91)
    whole = seen(nan, stopped, [back], goes_on(90, "snapshot"), trains(), level, ended(0, last_step=110))
    assert proof_of(whole, "loss-fell").answer == "holds"
    assert whole.loss.count == 90 + 20


STUB = '  File "/home/ann/.venv/bin/yolo", line 8, in <module>'
ULTRALYTICS = '  File "/home/ann/.venv/lib/python3.11/site-packages/ultralytics/engine/trainer.py", line 210, in train'
OURS = (
    '  File "/opt/src/holdfast/probe/../frameworks/ultralytics/probe/ultralytics/exact_resume.py", line 120, in around'
)
THEIRS = '  File "/home/ann/bin/train.py", line 3, in <module>'
SAYS = "RuntimeError: a rate of 1e30 is none"


@pytest.mark.parametrize(
    ("frames", "advice"),
    [
        ((STUB, ULTRALYTICS, OURS), f"none of your code is in the traceback; fix the command or the data: {SAYS}"),
        ((THEIRS, ULTRALYTICS, OURS), f"fix the call that leads to it: {THEIRS.strip()}"),
        ((STUB, THEIRS), f"fix this line: {THEIRS.strip()}"),
    ],
)  # fmt: skip
def test_advice_points_at_what_is_the_users(frames, advice):
    """Never into Holdfast, nor at the stub that starts a console script."""
    words = ["Traceback (most recent call last):", *frames, SAYS]
    assert explain(seen(started(), trains(), losses(1.0), ended(1, words=words))).next_steps[0].text == advice


@pytest.mark.parametrize(
    ("kept", "before", "steps"),
    [
        ([saved("m.pt", 1)], [1.0, 2e4], ["lower the learning rate (it was 0.01)", "go back to a checkpoint from before step 3"]),
        ([], [1.0, 2e4], ["lower the learning rate (it was 0.01)"]),
        ([], [1.0], ["lower the learning rate (it was 0.01)"]),
        ([], [1.0] * 50, ["check the inputs of that batch", "halve the learning rate"]),
        ([saved("m.pt", 60)], [1.0] * 50, ["check the inputs of that batch", "halve the learning rate"]),
    ],
)  # fmt: skip
def test_advice_on_what_is_not_finite_can_be_followed(kept, before, steps):
    """The rate first where the losses show that it is the rate; back to a checkpoint only where there is one from before."""
    since = len(before) + 1
    lost = losses(*["nan"] * 6, first=since)
    stopped = ended(signal="SIGTERM", last_step=since + 5, rule="loss-not-finite")
    told = explain(seen(started(), trains(), losses(*before), kept, lost, stopped)).next_steps
    texts = [step.text for step in told]
    assert all(any(text.startswith(step) for text in texts) for step in steps)
    assert texts[0].startswith(steps[0])
    assert any("go back to" in text for text in texts) == any("go back to" in step for step in steps)


def test_a_question_needs_no_full_stop():
    lost = [*losses(*[1.0] * 50), *losses(*["nan"] * 6, first=51)]
    told = explain(seen(started(), trains(), lost, ended(signal="SIGTERM", last_step=56, rule="loss-not-finite")))
    assert told.story[-1].endswith("a division by zero?")


def failed_in_the_second_attempt(*kept):
    killed = [*started(), *trains(), *losses(1.0, 0.9), *kept, *ended(signal="SIGKILL", last_step=2)]
    raised = ended(1, last_step=0, words=[*TRACEBACK, "ValueError: bad shape"])
    over = [events.RunEnded(at=120.0, verdict="failed", reason="it raised", exit_status=4)]
    return seen(killed, goes_on(2, "snapshot"), trains(), raised, over)


def test_what_earlier_attempts_kept_is_offered_once_a_mistake_is_mended():
    """An exception before the first step comes again by itself; sixteen steps in a snapshot are worth a resume after that."""
    snapshot = events.Snapshot(at=3.0, step=2, position=2, path="/run/snapshots/2", bytes=10, stall=0.0, seconds=0.1)
    offered = [step for step in explain(failed_in_the_second_attempt(snapshot), "case-1").next_steps if step.command]
    assert [(step.text, step.command) for step in offered] == [
        ("after you have fixed the error, resume from the snapshot of step 2", "holdfast resume case-1")
    ]
    assert not [step for step in explain(failed_in_the_second_attempt(), "case-1").next_steps if step.command]


def test_the_rate_is_named_in_the_attempt_that_started_over_too():
    """As with a rate of 50: lost, begun anew, and lost again at the same place."""
    stopped = ended(signal="SIGTERM", last_step=8, rule="loss-not-finite")
    lost = [*losses(1.0, 2e4), *losses(*["nan"] * 6, first=3), *stopped]
    state = seen(started(), trains(), lost, goes_on(0, "start over"), trains(), lost)
    assert explain(state).next_steps[0].text.startswith("lower the learning rate (it was 0.01)")


def test_a_gap_in_our_own_record_is_no_missing_work():
    """The run folder's disk was full after 40 steps; the heartbeat knows of all 100, and the losses that there are fell."""
    epochs = [events.Epoch(at=40.0, epoch=4, step=40, seconds=4.0, batches=10, planned=10, source="ultralytics")]
    falls = losses(*[3.0 - n / 20 for n in range(40)])
    state = seen(started(), trains(), falls, epochs, ended(0, last_step=100))
    assert [finding.rule for finding in state.findings if finding.rule == "steps-missing"] == []
    proof = next(proof for proof in collect_proofs(state) if proof.name == "planned-steps-done")
    assert (proof.answer, "events after step 40 are missing" in proof.detail) == ("does not apply", True)
    assert verdict(state).outcome is Outcome.LEARNED


def test_a_death_that_it_goes_on_from_is_told_and_a_start_is_no_blindness():
    """The second attempt has just started: what ended the first is named, and its silence is not taken for a missing probe."""
    sees = events.Coverage(
        at=0.4, seen=dict.fromkeys(("steps", "losses", "weight-updates"), ""), step_source="optimizer"
    )
    told = explain(seen(started(), trains(), [sees], losses(1.0), ended(signal="SIGKILL"), goes_on(8, "snapshot")))
    assert (
        "Attempt 1 failed: The training process was terminated from outside by SIGKILL after step 10" in told.story[1]
    )
    assert "Attempt 2 resumes from step 8." in told.story[1]
    assert told.unknown == []
    assert explain(seen(started())).unknown == []


def killed_three_times():
    snapshot = events.Snapshot(at=3.0, step=9, position=9, path="/run/snapshots/9", bytes=10, stall=0.0, seconds=0.1)
    once = [*trains(), *losses(1.0), snapshot, *ended(signal="SIGKILL")]
    stop = Decision(action=Action.STOP, attempt=3, why="w", stop_reason="no-attempt-left")
    over = [
        events.DecisionMade(at=110.0, decision=stop),
        events.RunEnded(at=120.0, verdict="failed", reason="killed", exit_status=4),
    ]
    return seen(started(), once, goes_on(9, "snapshot"), once, goes_on(9, "snapshot"), once, over)


def test_attempts_that_are_used_up_are_not_the_end():
    """What goes on, and from where, comes first; that the signal may come again is no news after three times."""
    steps = explain(killed_three_times(), "case-1").next_steps
    assert (steps[0].text, steps[0].command) == ("resume from the snapshot of step 9", "holdfast resume case-1")
    assert "--max-attempts N" in steps[1].text
    assert steps[2].text.startswith("find out what sends SIGKILL: it was sent 3 times, after 98, 98, 98 s.")
    assert not any("if it happens again" in step.text for step in steps)


def test_an_exit_without_a_word_has_a_next_step():
    told = explain(seen(started(), ended(1, last_step=0)))
    assert "It printed nothing." in told.story[1]
    assert told.next_steps[0].text == "run the command directly: python train.py"


def test_a_syntax_error_names_file_and_line():
    """Python prints both above it, and no traceback."""
    words = ['  File "/home/ann/train.py", line 3', "    def f()", "           ^", "SyntaxError: expected ':'"]
    told = explain(seen(started(), ended(1, last_step=0, words=words)))
    assert """SyntaxError: expected ':' (File "/home/ann/train.py", line 3)""" in told.story[1]
    assert told.next_steps[0].text == 'fix the syntax error: File "/home/ann/train.py", line 3'
