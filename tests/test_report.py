"""The report: says what the record says, escapes what others wrote, stays small, and draws whatever numbers come."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.series import Series
from holdfast.diagnosis.verdict import verdict
from holdfast.render.report import write_report
from holdfast.render.report.charts import Chart, Dot, Line, line_of, thin
from holdfast.render.report.compare import settings_in
from holdfast.render.report.html import as_html
from holdfast.render.report.markdown import as_markdown, code, text
from holdfast.render.report.model import report_of
from holdfast.render.report.svg import draw, sparkline
from holdfast.render.report.text import NOTHING
from holdfast.render.report.timeline import timeline_of
from holdfast.schema import events
from holdfast.schema.errors import UsageError
from holdfast.schema.units import GIB
from holdfast.schema.verdicts import Action, Decision, Finding
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import Entry, JournalWriter
from holdfast.testing.histories import TRACEBACK, ended, entries, losses, memory, started, trains, window

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> [a](javascript:alert(3)) `**|\x1b[31m\u202e"
DAY = 1_757_999_000.0


def played(history, *, conclude=True):
    """The state of a history, with what the rules say about it and its verdict."""
    state = RunState()
    engine = Engine(state)
    for entry in entries(history):
        for finding in engine.take(entry):
            state.fold(Entry(events.FindingMade(at=state.last_at, finding=finding), 1))
    if conclude and state.attempts:
        reached = verdict(state)
        end = events.RunEnded(
            at=state.last_at,
            verdict=reached.outcome.value,
            reason=reached.reason,
            proofs=reached.proofs,
            exit_status=reached.exit_status,
        )
        state.fold(Entry(end, 1))
    return state


def found(state, *findings):
    for finding in findings:
        state.fold(Entry(events.FindingMade(at=state.last_at, finding=finding), 1))
    return state


def report(state, **more):
    return report_of(state, title=more.pop("title", "case-1"), **more)


def restarted():
    """Killed at step 30, gone on from step 25, finished at step 60."""
    falling = [2.0 * 0.95**n + 0.01 * (n % 3) for n in range(60)]
    first = [*started(), *trains(), *losses(*falling[:30]), *memory(1.0), *ended(None, "SIGKILL", last_step=30)]
    saved = events.Saved(at=20.0, step=25, path="state.pt", compared=4, tensors=4, matches="equal")
    decision = Decision(action=Action.RESTART, attempt=1, why="going on from state.pt (step 25)", wait_s=2.0)
    again = events.AttemptStarted(
        at=104.0, attempt=2, pid=101, command=["x"], resume=events.Resume("command", "state.pt", 25)
    )
    steps = [
        events.Step(at=105.0 + n, step=n, seconds=0.1, loss=falling[n - 1], lr=[0.01 / n], parts={"box": 0.5 / n})
        for n in range(26, 61)
    ]
    end = events.AttemptEnded(at=170.0, attempt=2, code=0, first_step=26, last_step=60, seconds=66.0)
    first.insert(-1, saved)
    return [*first, events.DecisionMade(at=100.0, decision=decision), again, *steps, end]


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def test_a_run_that_was_killed_once_is_told_whole():
    """Story, proofs, both attempts, the decision, lost steps, cost, checkpoint: each is in both forms."""
    told = report(played(restarted()))
    for form in (as_html(told), as_markdown(told)):
        plain = re.sub(r"\s+", " ", form)
        assert "learned" in plain
        assert "the loss decreased from" in plain
        assert "killed by SIGKILL" in plain
        assert "resumed from state.pt, step 25" in plain
        assert "going on from state.pt (step 25)" in plain
        assert "5 steps had to be repeated" in plain
        assert "steps 26 to 60" in plain
        assert "lost work" in plain
        assert "loss-fell" in plain or "loss\\-fell" in plain


def test_story_cause_and_next_steps_of_a_death():
    """The cause with its confidence and evidence, what to do with the exact command, and what was printed last."""
    history = [
        *started(),
        *trains(),
        *losses(*[1.0 / n for n in range(1, 12)]),
        *ended(1, last_step=11, words=[*TRACEBACK, "ValueError: labels are wrong"]),
    ]
    told = report(played(history), reference="case-1")
    assert told.verdict == "failed"
    assert told.cause == "python-exception"
    assert told.confidence in ("proven", "likely", "possible")
    assert any(step.command == "holdfast resume case-1" for step in told.next_steps)
    assert "    loss = model(batch)" in told.last_lines
    page = as_html(told)
    assert "holdfast resume case-1" in page
    assert "ValueError: labels are wrong" in page
    assert "No usable checkpoint is known" in page


def test_report_needs_nothing_but_itself(tmp_path):
    """No script, nothing fetched, and the page itself forbids both."""
    files = write_report(played(restarted()), tmp_path, title="case-1")
    assert [file.name for file in files] == ["report.md", "report.html"]
    page = files[1].read_text("utf-8")
    seen = Tags(page)
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(seen.tags)
    assert not re.search(r"url\(|@import|https?:|//", page.replace("<!doctype html>", ""))
    assert all(value.startswith("#") for name, value in seen.attributes if name in ("href", "src"))
    assert "default-src 'none'" in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(page) < 200_000


def hostile():
    """Everything that others can write holds markup."""
    command = ["python", HOSTILE]
    history = [
        events.RunStarted(
            at=DAY,
            schema=1,
            run=HOSTILE,
            command=command,
            cwd=HOSTILE,
            holdfast="0",
            platform=HOSTILE,
            python="3",
            supervisor=1,
            environment={"X<b>": HOSTILE},
        ),
        events.AttemptStarted(
            at=DAY, attempt=1, pid=1, command=command, resume=events.Resume("command", HOSTILE, 1, HOSTILE)
        ),
        events.ProbeAttached(at=DAY, schema=1, pid=1, rank=0, python=HOSTILE, executable="x", torch=HOSTILE),
        events.Memory(at=DAY, step=1, device=HOSTILE, driver=10),
        *[
            events.Step(at=DAY + n, step=n, seconds=0.1, loss=1.0 / n, parts={HOSTILE: 1.0 / n, "b": 2.0})
            for n in range(1, 20)
        ],
        events.Metrics(at=DAY + 20, step=19, epoch=1, values={HOSTILE: 0.5, f"loss{HOSTILE}": 1.0}, source=HOSTILE),
        events.Saved(at=DAY + 20, step=19, path=HOSTILE),
        events.AttemptEnded(
            at=DAY + 21,
            attempt=1,
            code=1,
            signal=HOSTILE,
            last_step=19,
            seconds=21.0,
            evidence=[events.Evidence(HOSTILE, HOSTILE)],
            last_lines=[*TRACEBACK, HOSTILE, "```", "\udcff half a character"],
        ),
        events.CheckpointsBackedUp(at=DAY + 21, attempt=1, files=[events.BackedUpFile(HOSTILE, HOSTILE, 1)]),
        events.DecisionMade(at=DAY + 21, decision=Decision(action=Action.STOP, attempt=1, why=HOSTILE)),
    ]
    finding = Finding(
        rule=HOSTILE, severity="warn", attempt=1, step=5, message=HOSTILE, evidence=[HOSTILE], remedies=[HOSTILE]
    )
    return found(played(history), finding)


def test_page_escapes_what_others_wrote():
    """Names, log lines and messages with markup in them are shown as text, in the page and beside another run."""
    page = as_html(report(hostile(), title=HOSTILE, reference=HOSTILE, other=hostile()))
    seen = Tags(page)
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert not [value for name, value in seen.attributes if name == "href" and not value.startswith("#")]
    assert "<script>alert(1)</script>" in "".join(seen.words)
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_markdown_escapes_what_others_wrote():
    """Also where Markdown lets HTML through: nothing in it becomes a tag, a link or a table of its own."""
    rendered = (
        MarkdownIt("commonmark", {"html": True})
        .enable("table")
        .render(as_markdown(report(hostile(), title=HOSTILE, reference=HOSTILE, other=hostile())))
    )
    seen = Tags(rendered)
    assert not {"script", "img", "a"} & set(seen.tags)
    assert "<script>alert(1)</script>" in "".join(seen.words)
    assert "half a character" in rendered


@pytest.mark.parametrize(
    "words", ["# no heading", "- no list", "1. no list", "---", "> no quote", "a | b", "*a*", "$x$"]
)
def test_words_mean_nothing_in_markdown(words):
    rendered = MarkdownIt("commonmark").enable("table").render(f"{text(words)}\n\n{code(words + ' ``')}\n")
    assert set(Tags(rendered).tags) == {"p", "code"}
    assert words in "".join(Tags(rendered).words)


def test_a_million_steps_and_500_findings_stay_small(tmp_path):
    """Under 1 MB in the worst case: long hostile text everywhere, all kinds of curves, many attempts and files."""
    long = "<'>" * 2000
    history = started()[:1]
    for n in range(100):
        first = n * 10_000
        history.append(
            events.AttemptStarted(
                at=n * 1e4, attempt=n + 1, pid=1, command=["x"], resume=events.Resume("x", long, first)
            )
        )
        for last in range(first + 64, first + 10_000, 64):
            spread = events.WindowStats(n=64, mean=1.0 + 1 / last, low=0.5, high=3.0, first=1.0, last=1.0)
            parts = {f"part {k} {long}": spread for k in range(12)}
            at = n * 1e4 + last % 10_000
            history.append(
                events.Steps(
                    at=at, first=last - 63, last=last, seconds=6.4, loss=spread, parts=parts, lr=[0.1], grad_norm=spread
                )
            )
            history.append(events.Sample(at=at, rss=last, processes=1, available=GIB, swap=0, disk_free=GIB))
            values = {f"metric {k} {long}": last / 1e6 for k in range(12)} | {
                f"{long} loss {k}": 1.0 for k in range(12)
            }
            if last % 640 == 0:
                history.append(events.Metrics(at=at, step=last, epoch=last // 640, values=values, source="x"))
                history.append(events.Saved(at=at, step=last, path=f"{last} {long}"))
        history.append(
            events.AttemptEnded(
                at=n * 1e4 + 9e3, attempt=n + 1, code=1, last_step=first + 9_999, seconds=9e3, last_lines=[long] * 200
            )
        )
    state = RunState()
    for entry in entries(history):
        state.fold(entry)
    for n in range(500):
        rule = "loss-all-zero" if n % 2 else f"rule-{n}"
        finding = Finding(
            rule=rule,
            severity="warn",
            attempt=100,
            step=990_000 + n,
            message=long,
            evidence=[long] * 20,
            remedies=[long] * 20,
        )
        found(state, finding)
    files = write_report(state, tmp_path, title=long, other=state)
    assert all(file.stat().st_size < 1_000_000 for file in files), [file.stat().st_size for file in files]
    page = files[1].read_text("utf-8")
    assert "Attempts 3 to 94 are not shown here; see the journal." in page
    assert "(see summary.json)" in page


def test_finding_is_marked_where_its_evidence_is():
    """A NaN stands at its step in the loss, with the ground red from there on, and not in the step time."""
    told = report(
        played([*started(), *trains(), *losses(*[1.0 - n / 100 for n in range(20)], *["nan"] * 10), *ended(0)])
    )
    charts = {chart.name: chart for chart in told.charts}
    finding = told.findings[0]
    assert finding.rule == "loss-not-finite"
    assert [(mark.x, mark.number) for mark in charts["loss"].marks] == [(21, 1)]
    assert charts["loss"].nonfinite == ((21.0, 30.0),)
    assert charts["pace"].marks == ()
    page = as_html(told)
    assert 'class="badge fatal" href="#finding-1"' in page
    assert "this time is lost" in page


def test_neighbouring_marks_do_not_cover_each_other():
    line = Line("x", ((Dot(0, 1, 1, 1), Dot(100, 2, 2, 2)),))
    findings = [Finding(rule="loss-diverging", severity="warn", step=50 + n, message="m", attempt=1) for n in range(3)]
    state = found(played([*started(), *losses(*[1.0] * 100)], conclude=False), *findings)
    state.attempt.findings[-1] = Finding(rule="loss-constant", severity="warn", step=51, message="m", attempt=1)
    loss = next(chart for chart in report(state).charts if chart.name == "loss")
    places = [(badge.at, badge.row) for badge in draw(loss).badges]
    assert len({row for _, row in places}) == len(places) > 1
    assert draw(Chart("x", "x", "", (line,))).badges == ()


def test_thinning_keeps_peaks_and_means():
    """A curve of 100 000 values drawn in 300 points still has its one spike and its mean."""
    dots = [Dot(n, 1.0, 1.0, 9.0 if n == 77_777 else 1.0) for n in range(100_000)]
    few = thin(dots, 300)
    assert len(few) <= 300
    assert max(dot.high for dot in few) == 9.0
    assert all(math.isclose(dot.mean, 1.0) for dot in few)
    assert few[-1].x == 99_999


NUMBERS = {
    "zeros": [0.0] * 30,
    "one": [3.0],
    "constant": [1e-7] * 5,
    "tiny": [5e-324, 1e-323, 0.0],
    "huge": [1e308, -1e308, 1.7e308],
    "decades": [10.0**n for n in range(-30, 30)],
    "exploding": [1.0, 10.0, 1e30, 1e300],
    "below zero": [-5.0, -7.0, -9.5],
    "nearly equal": [1e16, 1e16 + 2, 1e16 + 4],
    "close": [1.00001, 1.00002, 1.00004],
    "spike": [1.0, 1.1, 0.9, 4e9, 1.0],
}


@pytest.mark.parametrize("values", NUMBERS.values(), ids=NUMBERS)
def test_any_numbers_can_be_drawn(values):
    """No number that a training can produce breaks the plot, its ticks, its caption or the text form."""
    told = report(played([*started(), *trains(), *losses(*values), *ended(0, last_step=len(values))]))
    chart = told.charts[0]
    plot = draw(chart)
    assert plot.up
    assert len(plot.up) <= 12
    assert len({tick.text for tick in plot.up}) == len(plot.up)
    assert not re.search(r"nan|inf", plot.svg)
    coordinates = [int(word) for word in re.findall(r'(?<=[ML ])-?\d+(?=[ LMZh"])', plot.svg)]
    assert all(-600 <= value <= 1600 for value in coordinates)
    assert sparkline(chart.lines[0])
    as_html(told)


def test_losses_that_were_never_finite_are_drawn_as_such():
    told = report(played([*started(), *trains(), *losses(*["nan"] * 30), *ended(0, last_step=30)]))
    assert told.charts[0].lines[0].strokes == ()
    assert "No value was finite" in as_html(told)


def test_scale_is_logarithmic_only_where_a_curve_spans_decades():
    steep = played([*started(), *losses(*[100.0 * 0.8**n for n in range(60)])], conclude=False)
    flat = played([*started(), *losses(*[3.0 - 0.01 * n for n in range(60)])], conclude=False)
    assert report(steep).charts[0].log
    assert not report(flat).charts[0].log


def test_lines_share_their_points():
    """Many attempts together draw no more than one would, but none is lost."""
    many = []
    for n in range(40):
        series = Series()
        for step in range(100):
            series.add(n * 100 + step, 1.0)
        many.append(series)
    line = line_of("loss", many)
    assert len(line.strokes) == 40
    assert len(line.dots) <= 700


def test_timeline_shows_attempts_side_by_side():
    """Their order, how each ended, what was lost; a night between two attempts does not push them off the band."""
    history = restarted()
    band = timeline_of(played(history)).segments
    assert [stretch.tone for stretch in band] == ["bad", "good"]
    assert band[0].lost > 0 == band[1].lost
    assert band[0].left + band[0].width <= band[1].left
    later = [
        events.AttemptStarted(at=104.0 + 40_000, attempt=2, pid=1, command=["x"]) if event.at == 104.0 else event
        for event in history
        if event.at <= 104.0
    ]
    end = events.AttemptEnded(at=40_200.0, attempt=2, code=0, last_step=60, seconds=96.0)
    band = timeline_of(played([*later, end])).segments
    assert band[0].width > 40
    assert band[1].width > 40


def test_beside_a_working_run():
    """What was set differently and what came out differently, and both curves in one plot."""

    def run(name, *words, values):
        head = events.RunStarted(
            at=0.0,
            schema=1,
            run=name,
            command=["python", "train.py", *words],
            cwd="/work",
            holdfast="0",
            platform="linux",
            python="3",
            supervisor=1,
        )
        return played([head, *started()[1:], *trains(), *losses(*values), *ended(0, last_step=len(values))])

    good = run("good", "--lr", "0.1", "--seed=1", values=[1.0 - n / 50 for n in range(30)])
    bad = run("bad", "--lr", "10", "--seed=1", "--amp", values=[0.0] * 30)
    told = report(bad, title="bad", other=good).comparison
    assert [(row.what, row.here, row.there) for row in told.settings] == [
        ("lr", "10", "0.1"),
        ("amp", "given", NOTHING),
    ]
    assert "seed" in told.same
    came = {row.what: (row.here, row.there) for row in told.results}
    assert came["verdict"] == ("not-learned", "learned")
    assert came["loss, last"] == ("0", "0.42")
    assert [line.name for line in told.chart.lines] == ["bad", "good"]
    page = as_html(report(bad, title="bad", other=good))
    assert "Compared with good" in page
    assert 'class="line other"' in page


def test_settings_of_a_command_line():
    words = ["yolo", "train", "lr0=0.1", "--epochs", "3", "--name=x", "--amp", "-v", "data=a=b"]
    assert settings_in(words) == {
        "word 1": "yolo",
        "word 2": "train",
        "lr0": "0.1",
        "epochs": "3",
        "name": "x",
        "amp": "given",
        "v": "given",
        "data": "a=b",
    }


@pytest.mark.parametrize(
    "history",
    [
        [],
        started()[:1],
        started(),
        [*started(), *ended(127, last_step=0)],
        [*started(), *memory(4.0), *memory(3.0), *ended(None, "SIGKILL", last_step=0)],
        [*started(), *trains(), *window(1, 5000, 1.0)],
    ],
    ids=["nothing", "no attempt", "just started", "no step", "memory but no step", "still running"],
)
def test_whatever_there_is_can_be_reported(history, tmp_path):
    files = write_report(played(history, conclude=False), tmp_path, title="case-1", reference="case-1")
    assert all(file.stat().st_size for file in files)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A run folder with a journal, as a supervisor leaves it."""
    run = RunFolder(tmp_path / ".holdfast" / "runs" / "case-1")
    run.path.mkdir(parents=True)
    run.plan.write_text("")
    writer = JournalWriter(run.journal)
    for event in [*started(), *ended(1, last_step=0, words=[*TRACEBACK, "ValueError: no"])]:
        writer.append(event)
    writer.close()
    monkeypatch.chdir(tmp_path)
    return run


def test_command_writes_the_report_and_says_where(recorded):
    done = CliRunner().invoke(app, ["report"])
    assert done.exit_code == 0, done.output
    assert str(recorded.path / "report.html") in done.output
    assert "case-1 made 1 attempt, completed no steps" in (recorded.path / "report.md").read_text("utf-8")


@pytest.mark.usefixtures("recorded")
def test_command_refuses_a_run_beside_itself():
    done = CliRunner().invoke(app, ["report", "case-1", "--compare", "case-1"])
    assert isinstance(done.exception, UsageError)
    assert "case-1 cannot be compared with itself" in str(done.exception)


def test_command_prints_json(recorded):
    shutil.copytree(recorded.path, recorded.path.with_name("case-2"))
    done = CliRunner().invoke(app, ["report", "case-1", "--compare", "case-2", "--json"])
    told = json.loads(done.stdout)
    assert told["title"] == "case-1"
    assert told["files"][1] == str(recorded.path / "report.html")
    assert told["comparison"]["name"] == "case-1 (other run)"


def test_report_is_light():
    """At the end of a run, in the supervisor: no plotting library, no torch, no numpy."""
    code = (
        "import sys; from pathlib import Path; import tempfile; from holdfast.diagnosis.run_state import RunState; "
        "from holdfast.render.report import write_report; before = 'jinja2' in sys.modules; "
        "write_report(RunState(), Path(tempfile.mkdtemp()), title='x'); "
        "print(before, {'matplotlib', 'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False set()"


def test_a_log_of_epochs_alone_is_told_by_epochs():
    """Where no step was seen, the training losses of the table are the curve, and findings stand at their epoch."""
    rows = [
        [
            events.Epoch(at=60.0 * n, epoch=n, step=0, seconds=60.0, batches=0, planned=5, source="ultralytics"),
            events.Metrics(
                at=60.0 * n, step=0, epoch=n, source="table", values={"train/box_loss": 0.0, "metrics/mAP50(B)": 0.0}
            ),
        ]
        for n in range(1, 6)
    ]
    state = played([*started(), *(event for row in rows for event in row), *ended(0, last_step=0)])
    told = report(found(state, Finding(rule="overfitting", severity="warn", attempt=1, epoch=3, message="m")))
    charts = {chart.name: chart for chart in told.charts}
    assert charts["loss"].title == "Training loss"
    assert charts["loss"].across == "epoch"
    assert 3 in [mark.x for mark in charts["metrics"].marks]
    assert told.timeline.attempts[0].steps == "up to epoch 5"
    assert told.cost.shares == ()
    as_html(told)


def test_memory_that_is_left_is_drawn_where_it_matters():
    """With plenty left, its line would hide how the training's own memory grows."""

    def names(available):
        samples = [
            events.Sample(at=n, rss=n * GIB, processes=1, available=available * GIB, swap=0, disk_free=GIB)
            for n in range(1, 5)
        ]
        steps = losses(*[1.0] * 4)
        both = [event for pair in zip(steps, samples, strict=True) for event in pair]
        charts = report(played([*started(), *trains(), *both], conclude=False)).charts
        return [line.name for line in next(chart for chart in charts if chart.name == "memory").lines]

    assert names(100) == ["training, all processes"]
    assert names(3) == ["training, all processes", "available on the machine"]
