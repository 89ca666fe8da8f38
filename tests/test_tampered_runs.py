"""Run folders that somebody changed: `status`, `report`, `resume` and `diagnose` say a sentence, wait for nothing, and hold little."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import sys
import tracemalloc

import pytest

from holdfast import __main__ as way_in
from holdfast.diagnosis.run_state import load_run_state
from holdfast.probe.holdfast_probe import heartbeat
from holdfast.remedies.policy import is_over
from holdfast.schema import events
from holdfast.schema.errors import HoldfastError, JournalUnreadable
from holdfast.schema.plan import Plan
from holdfast.storage import folder, journal
from holdfast.storage.folder import MAX_RANK_FILES, RunFolder, stage_folders
from holdfast.storage.heartbeats import read_beats
from holdfast.storage.journal import MAX_LINE, Tail, replay
from holdfast.storage.plan_copy import read_plan, write_plan
from holdfast.supervisor.find_resumable import is_resumable
from holdfast.supervisor.resume_point import find_resume_point

STARTED = {
    "event": "run-started",
    "at": 1.0,
    "schema": 1,
    "run": "run-1",
    "command": ["x"],
    "cwd": "/",
    "holdfast": "0",
    "platform": "",
    "python": "",
    "supervisor": 1,
}
ATTEMPT = {"event": "attempt-started", "at": 2.0, "attempt": 1, "pid": 4194304, "command": ["x"]}
HELLO = {
    "event": "probe-attached",
    "at": 3.0,
    "schema": 1,
    "pid": 4194304,
    "rank": 0,
    "python": "",
    "executable": "",
    "torch": "",
}
STEP = {"event": "step", "at": 4.0, "step": 1, "seconds": 0.1, "loss": 0.5}
FILES = (
    "journal.jsonl",
    "attempts/1/rank-0.jsonl",
    "attempts/1/interpreters.jsonl",
    "heartbeat",
    "lock",
    "summary.json",
)


def line(*parts, **changes):
    return json.dumps({**{name: value for part in parts for name, value in part.items()}, **changes}).encode() + b"\n"


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """One whose supervisor is gone, after a step."""
    made = folder.create(["python"], root=tmp_path, name="run")
    write_plan(made, Plan(cwd=str(tmp_path), command=["no-such-program"]))
    made.make_attempt(1)
    made.journal.write_bytes(line(STARTED) + line(ATTEMPT))
    rank_0(made).write_bytes(line(HELLO) + line(STEP))
    heartbeat.create(str(made.heartbeat))
    heartbeat.settle(str(made.heartbeat))
    return made


def rank_0(run):
    return run.attempt(1).path / "rank-0.jsonl"


def all_commands(run, monkeypatch, capsys):
    """Each command that reads, in this process, and what `resume` reads before it starts anything: sentences, no tracebacks."""
    monkeypatch.chdir(run.path.parents[2])
    for words in (
        ["status", run.name],
        ["status", run.name, "--json"],
        ["report", run.name],
        ["diagnose", str(run.path)],
    ):
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        code = None
        try:
            way_in.main()
        except SystemExit as end:
            code = end.code
        assert code in (None, 0, 1, 2, 3), words
    assert "Traceback" not in capsys.readouterr().err
    for read in (read_for_resume, is_resumable):
        with contextlib.suppress(HoldfastError):
            read(run)


def read_for_resume(run):
    plan = read_plan(run, [])
    state = load_run_state(replay(run))
    if not is_over(state) and state.attempts:
        find_resume_point(state, plan, None)


def put(path, kind):
    """Something else in this file's place."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else path)


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "loop"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_not_waited_for(run, monkeypatch, capsys, name, kind):
    """A FIFO, /dev/zero, a folder or a loop in place of each file of a run."""
    put(run.path / name, kind)
    all_commands(run, monkeypatch, capsys)


HOSTILE = {
    "nested": b'{"event":"step","at":1.0,"step":1,"seconds":1.0,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "unclosed": b'{"event":"step","x":' + b"[" * 200_000 + b"\n",
    "pid of 2**40": line(HELLO, pid=2**40),
    "negative pid": line(HELLO, pid=-1),
    "infinite time": b'{"event":"suspended","at":1e999}\n',
    "not a time": b'{"event":"suspended","at":NaN}\n',
    "time of 1e308": line({"event": "suspended", "at": 1e308}),
    "negative time": line({"event": "suspended", "at": -1.0}),
    "5,000 digits": b'{"event":"step","at":1.0,"seconds":1.0,"step":' + b"9" * 5000 + b"}\n",
    "30 digits": line(STEP, step=10**30),
    "negative step": line(STEP, step=-(10**10)),
    "seconds of 1e300": line(STEP, seconds=1e300),
    "loss that is a word": line(STEP, loss="splendid"),
    "huge losses": b"".join(line(STEP, step=n, at=3.0 + n, loss=1.7e308 * (-1) ** n) for n in range(2, 60)),
    "no text": b"\x00\xff\xfe\n" * 10,
    "other JSON": b'[]\n1\n"x"\nnull\n{}\n{"event":"none"}\n{"event":7}\n',
    "attempt of another kind": line(ATTEMPT, attempt=-5),
    "pid of an attempt": line(ATTEMPT, pid=2**40),
    "ended before it began": line(
        {"event": "run-ended", "at": 1.0, "verdict": "splendid", "reason": "", "exit_status": 7}
    ),
}


@pytest.mark.parametrize("place", ["journal.jsonl", "attempts/1/rank-0.jsonl", "attempts/1/interpreters.jsonl"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_give_a_sentence(run, monkeypatch, capsys, name, place):
    """Each of these lines, in each of the files: every command ends as it would for any run, and none with a traceback."""
    with (run.path / place).open("ab") as file:
        file.write(HOSTILE[name])
    all_commands(run, monkeypatch, capsys)


@pytest.mark.parametrize(
    "name", ["rank-foo.jsonl", "rank-.jsonl", "rank-0-pid-x.jsonl", "rank--1.jsonl", "rank-٣.jsonl"]
)
def test_names_that_are_no_ranks(run, monkeypatch, capsys, name):
    """A file that only looks like a rank's is none of ours."""
    (run.attempt(1).path / name).write_bytes(line(HELLO))
    assert [path.name for path in run.attempt(1).rank_files()] == ["rank-0.jsonl"]
    all_commands(run, monkeypatch, capsys)


def test_stages_with_odd_names(run, monkeypatch, capsys):
    """Folders among the stages that are none, and links and loops in their place."""
    for name in ("foo-1", "1-small", "99999999999999999999-x", "²", "-1"):
        (run.stages / name).mkdir(parents=True)
        (run.stages / name / "journal.jsonl").write_bytes(line(STARTED))
    assert [stage.name for stage in stage_folders(run)] == ["1-small"]
    all_commands(run, monkeypatch, capsys)


@pytest.mark.parametrize(
    "values",
    [
        (1, float("inf"), 0.0, 0.0, 0, 0, 0, -1, 7, 0),
        (1, float("nan"), 0.0, 0.0, 0, 0, 0, -1, 7, 0),
        (1, 1e308, float("inf"), float("inf"), 0, 0, 0, -1, 7, 0),
        (2**64 - 1, 1.0, 0.0, 0.0, 2**64 - 1, 0, 2**64 - 1, -(2**63), 2**32 - 1, 2**32 - 1),
        (1, -5.0, 0.0, 0.0, 0, 0, 0, -1, 7, 0),
    ],
)
def test_heartbeat_that_no_training_left(run, monkeypatch, capsys, values):
    """Infinite times and impossible processes in the table: it has no beat, and the commands do without."""
    table = bytearray(run.heartbeat.read_bytes())
    struct.pack_into("<QdddQQQqII", table, heartbeat.HEADER_SIZE, *values)
    run.heartbeat.write_bytes(bytes(table))
    assert read_beats(run) == {}
    all_commands(run, monkeypatch, capsys)


def test_honest_heartbeat_is_read(run):
    """As the probe leaves it."""
    heart = heartbeat.Heart(str(run.heartbeat), 0, 77, step=3)
    heart.close()
    assert [(beat.step, beat.pid) for beat in read_beats(run).values()] == [(3, 77)]


def test_a_line_of_any_length_is_not_held(run):
    """Forty megabytes without an end, and then an honest line: that is read, and memory stays at a few chunks."""
    with run.journal.open("ab") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + line({"event": "suspended", "at": 9.0}))
    tracemalloc.start()
    found = [type(entry.event).__name__ for entry in replay(run)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[-1] == "Suspended"
    assert most < 24 << 20


def test_an_overlong_line_is_no_event_however_it_is_read(tmp_path):
    """Also where it fits into one read."""
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(line({"event": "probe-note", "at": 1.0, "what": "x" * MAX_LINE}) + line(STEP))
    tail = Tail(path)
    assert [type(event) for event in tail.read()] == [events.Step]
    assert tail.skipped == 1


def test_files_have_bounds(run, monkeypatch):
    """Bytes of a file, of a run, of what is kept one by one, lines that are no events, attempts: beyond them it ends."""
    note = line({"event": "probe-note", "at": 5.0, "what": "x" * 88})
    rank_0(run).write_bytes(line(HELLO) + line(STEP) * 2000 + note * 100)

    def count(**bounds):
        with monkeypatch.context() as patched:
            for name, value in bounds.items():
                patched.setattr(journal, name, value)
            return sum(1 for _ in replay(run))

    whole = count()
    assert whole == 2103
    assert count(MAX_FILE_BYTES=1 << 12, CHUNK_BYTES=1 << 12, MIN_CHUNK_BYTES=1 << 12) < 100
    assert 2003 < count(MAX_KEPT_BYTES=20 * len(note)) < 2023
    with pytest.raises(JournalUnreadable, match="of events"):
        count(MAX_RUN_BYTES=1 << 10)
    run.journal.write_bytes(line(STARTED) + line(ATTEMPT) * 5)
    with pytest.raises(JournalUnreadable, match="attempts"):
        count(MAX_ATTEMPTS=4)
    run.journal.write_bytes(b"x\n" * 1000 + line(STARTED))
    monkeypatch.setattr(journal, "MAX_SKIPPED", 10)
    tail = Tail(run.journal)
    assert (tail.read(100), tail.at_end, tail.skipped) == ([], False, 50)
    assert (tail.read(), tail.at_end) == ([], True)


def test_many_rank_files_are_read_in_parts(run):
    """First processes of each rank first, and no more of them than there may be."""
    attempt = run.attempt(1).path
    for number in range(MAX_RANK_FILES + 20):
        (attempt / f"rank-0-pid-{number + 1}.jsonl").write_bytes(line(HELLO, at=5.0 + number))
    for rank in range(1, 64):
        (attempt / f"rank-{rank}.jsonl").write_bytes(line(HELLO, rank=rank))
    files = run.attempt(1).rank_files()
    assert len(files) == MAX_RANK_FILES
    assert [path.name for path in files[:64]] == [f"rank-{rank}.jsonl" for rank in range(64)]
    assert sum(1 for entry in replay(run) if isinstance(entry.event, events.ProbeAttached)) == MAX_RANK_FILES


def test_journal_that_may_not_be_read_is_told(run, monkeypatch):
    """No empty record is made of it."""
    monkeypatch.setattr(
        journal, "open_regular", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    with pytest.raises(JournalUnreadable, match="cannot be read: Permission denied"):
        list(replay(run))


def test_honest_extremes_are_events():
    """What a long run, a large machine or a diverging loss really writes is within the bounds."""
    for honest in (
        line(STEP, step=10**12, loss=1.7e308),
        line(STEP, loss="nan", grad_norm="inf"),
        line({"event": "memory", "at": 1.8e9, "step": 1, "device": "cuda:0", "limit": 2**63 - 1}),
        line(HELLO, pid=4194304, rank=255),
        line({"event": "slept", "at": 1.8e9, "seconds": 3e6}),
    ):
        events.decode(honest)
