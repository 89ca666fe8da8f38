"""The record: appended, tailed, replayed; torn lines, a full disk and foreign files survived."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap

import pytest
from fakes import FakeRun

from holdfast.process.process_events import Exited
from holdfast.schema import events
from holdfast.schema.errors import JournalUnreadable
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import JournalWriter, Tail, follow, replay
from holdfast.testing.histories import ended, losses, started, trains


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "attempts").mkdir()
    return folder


def step(number, at=None, **more):
    return events.Step(at=float(number) if at is None else at, step=number, seconds=0.1, **more)


def write(path, *what):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for event in what:
            file.write(events.encode(event) + b"\n")


def test_what_is_appended_comes_back(run):
    journal = JournalWriter(run.journal)
    history = [*started(), *ended(0)]
    for event in history:
        journal.append(event)
    journal.close()
    assert [entry.event for entry in replay(run)] == history


def test_torn_last_line_is_skipped_and_closed_off(run):
    """A line that a kill cut in two is lost alone: the next supervisor's first line stands by itself."""
    write(run.journal, *started())
    with run.journal.open("ab") as file:
        file.write(b'{"event":"sample","at":3.0,"rs')
    journal = JournalWriter(run.journal)
    journal.append(ended(0)[0])
    journal.close()
    assert [type(entry.event).__name__ for entry in replay(run)] == ["RunStarted", "AttemptStarted", "AttemptEnded"]


def test_garbage_between_events_is_counted_not_fatal(tmp_path):
    """Binary, an unknown event, a number where a record should be, a line of 5 MB: skipped, in bounded memory."""
    path = tmp_path / "rank-0.jsonl"
    write(path, step(1))
    with path.open("ab") as file:
        file.write(b"\x00\xff\xfe\n" + b'{"event":"from the future","at":1}\n' + b"42\n" + b"x" * 5_000_000 + b"\n")
    write(path, step(2))
    tail = Tail(path)
    found = []
    while not tail.at_end:
        found += tail.read(limit=1 << 16)
    assert [event.step for event in found] == [1, 2]
    assert tail.skipped == 4


def test_unknown_fields_are_ignored(tmp_path):
    """A newer probe may say more; an older reader takes what it knows."""
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(b'{"event":"step","at":1.0,"step":1,"seconds":0.1,"colour":"blue"}\n')
    assert Tail(path).read() == [step(1)]


def test_tail_waits_for_the_rest_of_a_line(tmp_path):
    """A line that is still being written is neither lost nor read in half."""
    path = tmp_path / "rank-0.jsonl"
    line = events.encode(step(1)) + b"\n"
    path.write_bytes(line[:10])
    tail = Tail(path)
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(line[10:])
    assert tail.read() == [step(1)]
    assert tail.skipped == 0


def test_tail_of_a_file_that_does_not_exist_yet(tmp_path):
    tail = Tail(tmp_path / "rank-0.jsonl")
    assert tail.read() == []
    write(tail.path, step(1))
    assert tail.read() == [step(1)]


def test_replay_puts_ranks_where_they_belong(run):
    """Events of the ranks stand between the supervisor's, in order of time, inside their own attempt."""
    first, second = started(), events.AttemptStarted(at=10.0, attempt=2, pid=2, command=["python"])
    sample = events.Sample(at=2.5, rss=1, processes=1, available=1, swap=0, disk_free=1)
    write(
        run.journal,
        *first,
        sample,
        events.AttemptEnded(at=5.0, attempt=1, code=1),
        second,
        events.AttemptEnded(at=20.0, attempt=2, code=0),
    )
    write(run.attempt(1).path / "rank-0.jsonl", trains()[2], step(1), step(2), step(3, at=99.0))
    write(run.attempt(1).path / "rank-1.jsonl", step(1, at=1.5))
    write(run.attempt(2).path / "rank-0.jsonl", step(4, at=11.0))
    order = [(type(e.event).__name__, e.attempt, e.rank) for e in replay(run)]
    assert order == [
        ("RunStarted", 0, None),
        ("AttemptStarted", 1, None),
        ("ProbeAttached", 1, 0),
        ("Step", 1, 0),
        ("Step", 1, 1),
        ("Step", 1, 0),
        ("Sample", 1, None),
        ("Step", 1, 0),
        ("AttemptEnded", 1, None),
        ("AttemptStarted", 2, None),
        ("Step", 2, 0),
        ("AttemptEnded", 2, None),
    ]


def test_further_process_of_a_rank_is_told_apart(run):
    write(run.journal, *started())
    write(run.attempt(1).path / "rank-0-pid-77.jsonl", step(1))
    assert [e.primary for e in replay(run) if e.rank == 0] == [False]


def test_newer_schema_is_refused_with_a_sentence(run):
    write(
        run.journal,
        events.RunStarted(
            at=0, schema=99, run="r", command=[], cwd="", holdfast="9", platform="", python="", supervisor=1
        ),
    )
    with pytest.raises(JournalUnreadable, match="schema version 99"):
        list(replay(run))


def test_folder_without_a_journal(run):
    with pytest.raises(JournalUnreadable, match="no journal"):
        list(replay(run))


def test_full_disk_loses_nothing(run, tmp_path):
    """While the disk is full events wait in memory; when there is room again they are all written, in order.

    The file-size limit stands in for the disk: a write at the limit is cut short and then refused, as on a full disk.
    """
    script = tmp_path / "fill.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import resource, signal, sys
            from pathlib import Path
            from holdfast.storage.journal import JournalWriter
            from holdfast.schema import events
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            journal = JournalWriter(Path({str(run.journal)!r}))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            for n in range(100):
                journal.append(events.Slept(at=float(n), seconds=1.0))
            assert journal.trouble, "the limit was not met"
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert journal.flush() and journal.trouble is None
            journal.close()
            """
        )
    )
    subprocess.run([sys.executable, script], check=True)
    assert [entry.event.at for entry in replay(run)] == [float(n) for n in range(100)]


def test_a_disk_that_stays_full_still_takes_the_last_words(run, monkeypatch):
    """Room that was taken at the beginning is given back at the end: how it ended is in the record, whatever filled the disk."""
    reserve, write_really = run.path / "reserve", os.write
    journal = JournalWriter(run.journal)
    journal.append(started()[0])
    assert reserve.stat().st_size == 1 << 20

    def full(handle, data):
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_really(handle, data)

    monkeypatch.setattr(os, "write", full)
    for event in (*started()[1:], *ended(1)):
        journal.append(event)
    assert journal.trouble == "No space left on device"
    journal.close()
    assert [entry.event for entry in replay(run)] == [*started(), *ended(1)]
    assert not reserve.exists()


def test_a_disk_that_is_full_from_the_start_is_not_filled_up_by_the_reserve(run, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("holdfast.storage.disk_reserve.os.urandom", full)
    journal = JournalWriter(run.journal)
    journal.append(started()[0])
    assert sorted(path.name for path in run.path.iterdir()) == ["attempts", "journal.jsonl"]
    journal.close()


def test_many_windows_replay(run):
    """Long runs are windows; all of them come back, in order. (How fast, and how large a million steps are: bench/overhead.)"""
    write(run.journal, *started())
    spread = events.WindowStats(n=16, mean=1.0, low=0.5, high=1.5, first=1.0, last=1.0)
    write(
        run.attempt(1).path / "rank-0.jsonl",
        *(
            events.Steps(at=float(n), first=n * 16 + 1, last=n * 16 + 16, seconds=0.1, loss=spread, lr=[0.1])
            for n in range(5000)
        ),
    )
    assert sum(1 for _ in replay(run)) == 5002


# --- following a run --------------------------------------------------------------------------------------------------


def test_follower_continues_where_it_stopped(tmp_path):
    """Each read returns what is new, of the supervisor and of the ranks, also of an attempt that began in between."""
    run = FakeRun(tmp_path)
    pieces = []

    def look(_child):
        reader = pieces[0][0] if pieces else follow(run.folder)
        pieces.append((reader, [type(entry.event).__name__ for entry in reader.read()]))

    first = [trains(), losses(3.0, 2.0), look, losses(1.0, first=3), look, look, Exited(None, "SIGKILL")]
    run.supervise(first, [trains(), look, losses(1.0), Exited(0)])
    look(None)
    seen = [names for _, names in pieces]
    assert [names.count("Step") for names in seen] == [2, 1, 0, 0, 1]
    assert seen[3].index("AttemptEnded") < seen[3].index("AttemptStarted") < seen[3].index("ProbeAttached")
    assert sorted(name for names in seen for name in names) == sorted(
        type(entry.event).__name__ for entry in replay(run.folder)
    )
