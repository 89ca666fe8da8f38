"""The report does not draw or count what was not so: gaps, cut epochs, marks, steps, and where the time went."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import pytest
from histories import seen

from holdfast.diagnosis.explanation import explain
from holdfast.diagnosis.goodput import BUCKETS
from holdfast.render.progress import progress
from holdfast.render.report.charts import Chart, Dot, Line, split_at_gaps
from holdfast.render.report.model import BUCKETS as SAID
from holdfast.render.report.model import report_of
from holdfast.render.report.svg import draw
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.storage.journal import Entry
from holdfast.testing.histories import ended, losses, started, trains

CSS = files("holdfast.render.report").joinpath("report.css").read_text("utf-8")


def dots(*places, n=1):
    return tuple(Dot(x, 1.0, 1.0, 1.0, n) for x in places)


def chart(report, name):
    return next((chart for chart in report.charts if chart.name == name), None)


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_a_line_is_broken_where_nothing_was_measured():
    """Thirty steps that were looked at, and one 350 steps later: no line leads there."""
    pieces = split_at_gaps(dots(*range(1, 31), 380))
    assert [len(piece) for piece in pieces] == [30, 1]


@pytest.mark.parametrize(
    "stroke",
    [dots(*range(0, 1000, 50)), (*dots(*range(1, 31)), *dots(94, 158, 222, n=64)), dots(1, 500), dots(7)],
    ids=["now and then, always", "one by one, then windows of all", "two", "one"],
)
def test_a_line_is_whole_where_its_points_are_as_close_as_ever(stroke):
    assert split_at_gaps(stroke) == [stroke]


def test_a_point_that_stands_alone_is_seen():
    """In a line of many points, of which no others are drawn as such."""
    line = Line("x", (dots(*range(100)), dots(900)))
    drawn = re.search(r'class="dots c0" d="([^"]*)"', draw(Chart("x", "x", "", (line,))).svg)
    assert drawn.group(1).count("M") == 1


def test_gradients_that_were_not_looked_at_are_not_drawn():
    looked = losses(*[1.0] * 30, grad_norm=2.0)
    blind = losses(*[1.0] * 400, first=31)
    told = report_of(seen(started(), trains(), looked, blind, losses(1.0, first=431, grad_norm=1.0)), title="x")
    gradient = chart(told, "gradient")
    assert [len(stroke) for stroke in gradient.lines[0].strokes] == [30, 1]
    assert "where the line is broken" in gradient.caption


# --- epochs -----------------------------------------------------------------------------------------------------------


def epoch(n, last_step, seconds):
    return events.Epoch(
        at=float(last_step), epoch=n, step=last_step, seconds=seconds, batches=80, planned=12, source="guard"
    )


def resumed(at_step, *epochs):
    """Four epochs of 80 steps under way, gone on with from a snapshot."""
    first = [*started(), *trains(), epoch(1, 80, 4.5), epoch(2, 160, 4.3), *ended(None, "SIGKILL", last_step=221)]
    again = events.AttemptStarted(at=99.5, attempt=2, pid=2, command=["x"], resume=events.Resume("s", "s", at_step))
    return report_of(seen(first, [again], losses(1.0, first=at_step + 1), epochs), title="x")


def test_the_rest_of_an_epoch_is_not_drawn_as_one():
    told = chart(resumed(217, epoch(3, 240, 1.5), epoch(4, 320, 4.4)), "epochs")
    assert [(dot.x, dot.mean) for dot in told.lines[0].dots] == [(80, 4.5), (160, 4.3), (320, 4.4)]
    assert "were interrupted by a restart" in told.caption


def test_an_epoch_that_was_only_closed_again_is_not_drawn():
    """The snapshot was taken after its last step, before its end was told."""
    told = chart(resumed(160, epoch(2, 160, 0.05), epoch(3, 240, 4.4)), "epochs")
    assert [dot.mean for dot in told.lines[0].dots] == [4.5, 4.3, 4.4]


def test_whole_epochs_after_a_restart_are_drawn():
    told = chart(resumed(160, epoch(3, 240, 4.1), epoch(4, 320, 4.4)), "epochs")
    assert [dot.mean for dot in told.lines[0].dots] == [4.5, 4.3, 4.1, 4.4]
    assert "cut in two" not in told.caption


def test_the_first_epoch_may_have_been_cut_too():
    first = [*started(), *trains(), *losses(*[1.0] * 50), *ended(None, "SIGKILL", last_step=50)]
    again = events.AttemptStarted(at=99.5, attempt=2, pid=2, command=["x"], resume=events.Resume("s", "s", 48))
    rest = [*losses(1.0, first=49), *(epoch(n, 80 * n, 1.7 if n == 1 else 4.0) for n in range(1, 5))]
    told = chart(report_of(seen(first, [again], rest), title="x"), "epochs")
    assert [dot.mean for dot in told.lines[0].dots] == [4.0, 4.0, 4.0]


def test_the_name_of_an_axis_is_not_broken():
    assert "white-space: nowrap" in re.search(r"\.unit \{[^}]*\}", CSS).group()


# --- marks ------------------------------------------------------------------------------------------------------------


def found(*findings):
    state = seen(started(), trains(), losses(*[1.0 - n / 1000 for n in range(500)]))
    for finding in findings:
        state.fold(Entry(events.FindingMade(at=state.last_at, finding=finding), 1))
    return report_of(state, title="x")


def killed(attempt, step):
    return Finding(rule="killed-externally", severity="fatal", attempt=attempt, step=step, message="m")


def test_each_of_two_kills_is_marked():
    """They are told as one finding, and both places have its number."""
    told = found(killed(1, 221), killed(2, 439))
    number = next(finding.number for finding in told.findings if finding.rule == "killed-externally")
    marks = [mark.x for mark in chart(told, "loss").marks if mark.number == number]
    assert marks == [221, 439]
    assert "also in attempt 1 (step 221)" in next(f for f in told.findings if f.number == number).where


def test_many_of_a_kind_do_not_crowd_out_another():
    other = Finding(rule="loss-diverging", severity="warn", attempt=1, step=305, message="m")
    marks = chart(found(*(killed(n, 10 * n) for n in range(1, 40)), other), "loss").marks
    assert len(marks) == 10
    assert 305 in [mark.x for mark in marks]


# --- how far, and where the time went ---------------------------------------------------------------------------------


def test_head_and_story_count_the_same_steps():
    """It started over, and the second life did not come as far as the first."""
    again = events.AttemptStarted(at=99.5, attempt=2, pid=2, command=["x"])
    second = events.AttemptEnded(at=199.0, attempt=2, code=1, first_step=1, last_step=132, seconds=90.0)
    told = report_of(
        seen(
            started(), trains(), losses(*[1.0] * 134), ended(1, last_step=134), [again], losses(*[1.0] * 132), [second]
        ),
        title="x",
    )
    assert "132 steps" in told.figures
    assert "132 steps" in told.story[0]


def passes(*ends):
    """A loader that was exhausted at these steps: each process counts from 1."""
    return [
        events.Epoch(at=float(step), epoch=n, step=step, seconds=1.0, batches=100, source="loader")
        for n, step in enumerate(ends, 1)
    ]


def by_command(number, step):
    resume = events.Resume(how="command", checkpoint="state.pt", step=step)
    return [events.AttemptStarted(at=100.0, attempt=number, pid=100 + number, command=["python"], resume=resume)]


def test_epochs_go_on_where_a_command_goes_on():
    """Killed in the fourth and in the sixth epoch, each time gone on from the checkpoint of the epoch before: eight in all."""
    killed = ended(signal="SIGKILL", last_step=0)
    first = [*started(), *trains(), *losses(1.0), *passes(100, 200, 300), *killed]
    second = [*by_command(2, 300), *losses(1.0, first=301), *passes(400, 500), *killed]
    third = [*by_command(3, 400), *losses(1.0, first=401), *passes(500, 600, 700, 800), *ended(0, last_step=800)]
    state = seen(first, second)
    assert state.attempt.epoch == 5
    assert progress(state, "").startswith("epoch 5")
    assert "made 3 attempts, completed 800 steps (8 epochs" in explain(seen(first, second, third)).story[0]


def test_epochs_that_nobody_can_count_are_not_counted():
    """The step of the checkpoint is not known."""
    state = seen(started(), trains(), passes(100, 200), ended(1, last_step=250), by_command(2, 0), passes(100))
    assert state.attempt.epoch is None


def test_what_is_said_of_training_is_the_sum_of_its_rows():
    steps = [
        events.Step(at=1.0 + n, step=n + 1, seconds=1.0, data_wait=0.25, loss=1.0 / (n + 1), lr=[0.1])
        for n in range(40)
    ]
    cost = report_of(seen(started(), trains(), steps, ended(0, last_step=40)), title="x").cost
    rows = {share.text: share.took for share in cost.shares}
    assert "40.0 s of it" in cost.text
    assert "training steps" in cost.text
    assert {message: took for message, took in rows.items() if message.startswith("training steps")} == {
        "training steps, computing": "30.0 s",
        "training steps, waiting for data": "10.0 s",
    }


def backgrounds(*, dark, in_vain):
    """Each bucket with its background, as the style sheet has it."""
    light_part, dark_part = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    values = dict(re.findall(r"--([\w-]+): (#\w+)", light_part))
    values |= dict(re.findall(r"--([\w-]+): (#\w+)", dark_part)) if dark else {}
    rules = re.findall(r"(\.wasted )?i\.(\w+) \{ background: ([^;]*);", CSS)
    used = {name: colour for special, name, colour in rules if in_vain or not special}
    return {name: re.sub(r"var\(--([\w-]+)\)", lambda var: values[var.group(1)], used[name]) for name in BUCKETS}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("in_vain", [False, True], ids=["learned", "in vain"])
def test_buckets_can_be_told_apart(dark, in_vain):
    """Each has a colour of its own, far enough from any other; what had to be repeated is hatched, as among the attempts."""
    assert set(SAID) == set(BUCKETS)
    drawn = backgrounds(dark=dark, in_vain=in_vain)
    plain = {name: colour for name, colour in drawn.items() if colour.startswith("#")}
    assert set(drawn) - set(plain) == {"lost_work"}
    for (one, here), (other, there) in itertools.combinations(plain.items(), 2):
        assert _apart(here, there) > 60, (one, other)


def _apart(here, there):
    def channels(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        return [int(digits[n : n + 2], 16) for n in (0, 2, 4)]

    return sum((a - b) ** 2 for a, b in zip(channels(here), channels(there), strict=True)) ** 0.5
