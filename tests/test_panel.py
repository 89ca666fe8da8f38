"""The panel, and the lines that are printed while a run lives: whole paths, lines of their own, one wording, one unit."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import msgspec
import pytest
from histories import seen
from rich.console import Console

from holdfast.diagnosis.engine import Engine
from holdfast.launch.new_run_folder import create_run_folder
from holdfast.process.process_identity import read_identity
from holdfast.render.box import Box, wrap
from holdfast.render.console_reporter import ConsoleReporter
from holdfast.render.newline_guard import NewlineGuard
from holdfast.render.panel import panel, print_panel
from holdfast.render.report.markdown import as_markdown
from holdfast.render.report.model import report_of
from holdfast.render.status import print_status, status_of
from holdfast.schema import events
from holdfast.schema.errors import RunExists
from holdfast.schema.units import GIB
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import Entry, JournalWriter
from holdfast.supervisor.event_pipeline import EventPipeline
from holdfast.testing.histories import ended, losses, started, trains

LONG = "/data/someone/experiments/2026/detect/shapes-large/attempts/weights/best-of-all-epochs.pt"


def printed(renderable, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable, soft_wrap=True)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_path_can_be_copied_in_one_piece(width):
    """Where it does not fit it is folded, and stands whole below the frame; everything else stays within it."""
    shown = printed(Box("holdfast · x", [("best", "", f"kept in {LONG} (stage large)")], "green"), width)
    assert LONG in shown
    over = [line for line in shown.splitlines() if len(line) > width]
    assert all(line.endswith(LONG) for line in over)
    assert [line for line in shown.splitlines() if len(line) < width and LONG not in line] == []


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_edge_is_whole_whatever_stands_in_it(width):
    rows = [("next", "", f"see https://example.org/{'a' * 300} and read {LONG}"), ("record", "", LONG)]
    lines = printed(Box("holdfast · x", rows, "green"), width).splitlines()
    frame = lines[: 1 + next(n for n, line in enumerate(lines) if line.startswith("╰"))]
    assert {len(line) for line in frame} == {width}
    assert {line[-1] for line in frame} == {"╮", "│", "╯"}


def test_a_short_path_moves_to_the_next_line_as_a_whole():
    assert list(wrap("going on from /tmp/run/last.pt (step 3)", 20)) == [
        "going on from",
        "/tmp/run/last.pt",
        "(step 3)",
    ]


def test_words_that_are_twice_as_wide_stay_in_the_frame():
    lines = printed(Box("holdfast · 訓練", [("訓練", "bold", "数据 " * 40)], "red"), 60).splitlines()
    assert {Console().measure(line).maximum for line in lines} == {60}


def test_what_is_printed_is_not_cut_off(tmp_path, capsys):
    """The console itself would cut lines to its width."""
    run = RunFolder(tmp_path / ("long" * 30) / "x-1")
    print_panel(run, seen(started()))
    assert str(run.path) in capsys.readouterr().err


def killed_and_restored(compared=3, differs_at=None):
    """Killed after step 221 with a snapshot of step 217; the loss of the last batch was not written any more."""
    restored = events.Restored(at=102.0, step=217, path="s", exact=True, why="")
    replayed = events.Replayed(at=103.0, step=220, compared=compared, differs_at=differs_at)
    first = events.AttemptEnded(
        at=99.0, attempt=1, code=None, signal="SIGKILL", first_step=1, last_step=221, seconds=98.0
    )
    again = events.AttemptStarted(
        at=101.0, attempt=2, pid=101, command=["x"], resume=events.Resume("snapshot", "s", 217)
    )
    return [
        *started(),
        *trains(),
        *losses(*[1.0] * 220),
        first,
        again,
        restored,
        *losses(*[1.0] * 4, first=218),
        replayed,
    ]


def test_what_was_done_again_is_told_in_one_wording(tmp_path):
    """Four steps were lost and the losses of three could be compared: panel, report and live line say the same of it."""
    state = seen(killed_and_restored())
    told = "4 steps had to be repeated; the losses of 3 repeated batches are bit-identical to the original ones"
    assert told in _unframed(printed(panel(RunFolder(tmp_path), state)))
    assert told in as_markdown(report_of(state, title="x"))
    stream = io.StringIO()
    ConsoleReporter(RunFolder(tmp_path), stream)(state.attempt.snapshots.replayed, state)
    assert stream.getvalue() == f"holdfast: {told}\n"


def test_what_came_out_otherwise_is_not_called_the_same(tmp_path):
    shown = _unframed(printed(panel(RunFolder(tmp_path), seen(killed_and_restored(differs_at=219)))))
    assert (
        "4 steps had to be repeated; the repeated losses differ from the original ones, starting at step 219" in shown
    )
    assert "bit for bit the same" not in shown


def _unframed(shown):
    return re.sub(r"[\s│]+", " ", shown)


# --- where a line begins ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """With an attempt that has printed."""
    folder = RunFolder(tmp_path)
    (tmp_path / "attempts").mkdir()
    folder.make_attempt(1)
    return folder


def said(run, stream):
    before = stream.tell()
    ConsoleReporter(run, stream)(
        events.Signalled(at=1.0, signal="SIGTERM", action="stopping the training process"), seen(started())
    )
    return stream.getvalue()[before:]


def test_a_line_of_ours_begins_after_the_trainings_own(run):
    """A progress bar that has not ended its line is ended first; whole lines are followed at once."""
    log = run.attempt(1).stderr_log
    line = "holdfast: SIGTERM: stopping the training process\n"
    assert said(run, io.StringIO()) == line
    log.write_bytes(b"epoch 1\n")
    assert said(run, io.StringIO()) == line
    log.write_bytes(b"epoch 1\n\r 3/8 0.2s")
    assert said(run, io.StringIO()) == "\n" + line


def test_a_bar_is_ended_once(run):
    """After a line of ours the next one needs no fresh line, unless the training has printed since."""
    start, stream = NewlineGuard(run), io.StringIO()
    log = run.attempt(1).stderr_log
    log.write_bytes(b"\r 3/8")
    assert [start.needed_newline(stream) for _ in range(2)] == ["\n", ""]
    log.write_bytes(b"\r 3/8\r 4/8")
    assert start.needed_newline(stream) == "\n"


def test_the_output_of_a_stage_counts(tmp_path):
    stage = RunFolder(tmp_path / "stages" / "1-small")
    (stage.path / "attempts").mkdir(parents=True)
    stage.plan.write_text("")
    stage.journal.write_text("")
    stage.make_attempt(1)
    stage.attempt(1).stderr_log.write_bytes(b"\r 3/8")
    assert NewlineGuard(RunFolder(tmp_path)).needed_newline(io.StringIO()) == "\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_lines_can_be_found_in_a_file(tmp_path, stream):
    """Both streams in one file, a bar in either: every line of Holdfast's begins where a line does."""
    script = tmp_path / "bar.py"
    script.write_text(
        f"import sys, time\nsys.{stream}.write('\\r 3/8 0.2s')\nsys.{stream}.flush()\ntime.sleep(.5)\nsys.exit(3)\n"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(
            [sys.executable, "-m", "holdfast", "run", "--max-attempts", "1", "--", sys.executable, str(script)],
            cwd=tmp_path,
            stdout=out,
            stderr=out,
            check=False,
            timeout=120,
        )
    text = (tmp_path / "out").read_bytes().decode()
    assert "3/8 0.2s\n" in text
    assert re.findall(r"(?m)(?<!^)holdfast: .*", text) == []
    assert len(re.findall(r"(?m)^holdfast: ", text)) >= 2


# --- where it stands --------------------------------------------------------------------------------------------------


def recorded(tmp_path, *history):
    run = RunFolder(tmp_path)
    run.plan.write_text("")
    writer = JournalWriter(run.journal)
    for event in [event for part in history for event in part]:
        writer.append(event)
    writer.close()
    return run


def test_status_tells_memory_once(tmp_path, capsys):
    pid, start, pid_space = read_identity(os.getpid())
    begun = [msgspec.structs.replace(event, pid=pid, start=start, pid_space=pid_space) for event in started()[1:2]]
    sample = events.Sample(at=3.0, rss=GIB // 2, processes=1, available=3 * GIB, swap=0, disk_free=GIB)
    print_status(status_of(recorded(tmp_path, started()[:1], begun, [sample])), as_json=False)
    shown = capsys.readouterr().out
    assert len(re.findall(r"\bmemory \d", shown)) == 1
    assert "memory 512 MiB of 3.5 GiB" in shown


def test_no_clock_runs_for_what_is_gone(tmp_path, capsys):
    """Supervisor and training were killed after 9 s: twenty seconds later nothing is expected of them, and no forecast is made."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    begun = [msgspec.structs.replace(event, pid=gone.pid) for event in started()[1:]]
    sample = events.Sample(at=9.0, rss=GIB // 2, processes=1, available=3 * GIB, swap=0, disk_free=GIB)
    status = status_of(recorded(tmp_path, started()[:1], begun, [sample]), now=29.0)
    print_status(status, as_json=False)
    shown = capsys.readouterr().out
    assert "last activity 20.0 s ago, after running for 9.0 s" in shown
    assert (status["progress"], status["now"]["for_s"]) == (None, 9.0)
    assert "for 29.0 s" not in shown
    assert "memory" not in shown


def test_a_killed_supervisor_is_told_in_every_list(tmp_path, capsys):
    """Nobody saw an exit code: there is none to show."""
    orphan = events.AttemptEnded(
        at=9.0, attempt=1, code=None, first_step=1, last_step=3, seconds=9.0, stopped_by="supervisor gone"
    )
    history = [*started(), *trains(), *losses(1.0, 0.9, 0.8), orphan]
    print_status(status_of(recorded(tmp_path, history)), as_json=False)
    shown = capsys.readouterr().out
    assert "attempt 1: steps 1 to 3, supervisor was killed" in shown
    assert "None" not in shown
    assert "supervisor was killed" in _unframed(printed(panel(RunFolder(tmp_path), seen(history))))


# --- a folder that is taken ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "code", "message", "not_this"),
    [
        ("learned", 0, "choose another --dir; to see the result of that run: holdfast report", "holdfast resume"),
        ("failed", 1, "holdfast resume", "holdfast report"),
    ],
)
def test_a_folder_that_is_taken_says_what_can_be_done_with_its_run(tmp_path, verdict, code, message, not_this):
    """A resume of one that has finished would only be refused."""
    over = events.RunEnded(at=120.0, verdict=verdict, reason="x", exit_status=code)
    recorded(tmp_path, started(), trains(), losses(1.0), ended(code), [over])
    with pytest.raises(RunExists) as taken:
        create_run_folder(["python", "x.py"], root=tmp_path, name=None, folder=tmp_path)
    assert message in taken.value.next_step
    assert not_this not in taken.value.next_step


# --- what it leaves -----------------------------------------------------------------------------------------------------


def trained_into(folder, matches="equal", nonfinite=0):
    best = events.Saved(
        at=5.0, step=9, path=f"{folder}/weights/best.pt", tensors=4, compared=4, matches=matches, nonfinite=nonfinite
    )
    return [events.Settings(at=0.5, source="ultralytics", values={"save_dir": folder}), best]


def test_a_command_leaves_its_best_and_its_results(tmp_path):
    history = [*started(), *trains(), *trained_into("runs/e"), *losses(1.0), *ended(0)]
    shown = _unframed(printed(panel(RunFolder(tmp_path), seen(history))))
    assert "best runs/e/weights/best.pt results runs/e " in shown
    assert "another folder" not in shown


def test_a_best_that_cannot_be_used_is_not_offered(tmp_path):
    history = [*started(), *trains(), *trained_into("runs/e", nonfinite=4), *losses(1.0), *ended(0)]
    shown = _unframed(printed(panel(RunFolder(tmp_path), seen(history))))
    assert "unusable runs/e/weights/best.pt" in shown
    assert " best runs/e" not in shown


def test_another_folder_is_said(tmp_path):
    """Killed before its first snapshot and started over by its own command: Ultralytics takes the next free folder."""
    over = events.Resume(how="start over", why="it crashed before its first snapshot")
    again = events.AttemptStarted(at=100.0, attempt=2, pid=101, command=["yolo"], resume=over)
    killed = [*started(), *trains(), *trained_into("runs/e")[:1], *ended(signal="SIGKILL", last_step=0)]
    settings = trained_into("runs/e-2")[0]
    state = seen(killed, [again], trains(), [settings])
    told = "attempt 2 started over and writes to a new folder; attempt 1 wrote to runs/e"
    assert f"results runs/e-2 ({told})" in _unframed(printed(panel(RunFolder(tmp_path), state), 200))
    assert told in as_markdown(report_of(state, title="x"))
    stream, journal = io.StringIO(), JournalWriter(tmp_path / "journal.jsonl")
    narrator = ConsoleReporter(RunFolder(tmp_path), stream)
    EventPipeline(journal, Engine(state), [narrator], lambda: 101.0).take_probe_entries(
        [Entry(settings, 2, 0)]
    )  # as the probe writes it
    journal.close()
    assert f"holdfast: {told}\n" in stream.getvalue()
