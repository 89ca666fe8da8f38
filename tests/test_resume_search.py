"""`holdfast resume` without a name: which run is taken, and how little is read to know it."""

from __future__ import annotations

import json
import os

import pytest

from holdfast.diagnosis.run_state import load_run_state
from holdfast.render.summary import summary_of, write_summary
from holdfast.schema import events
from holdfast.schema.errors import UnknownRun
from holdfast.storage import folder
from holdfast.storage.journal import JournalWriter, replay
from holdfast.storage.summary_file import MAX_SUMMARY_BYTES, recorded_verdict
from holdfast.supervisor import find_resumable
from holdfast.supervisor.find_resumable import is_resumable, newest_resumable


def run_with(root, verdict, at=1.0):
    run = folder.create(["python"], root=root, name="run")
    run.plan.write_text("")
    os.utime(run.plan, (at, at))
    journal = JournalWriter(run.journal)
    journal.append(
        events.RunStarted(
            at=1.0, schema=1, run=run.name, command=["x"], cwd="/", holdfast="0", platform="", python="", supervisor=1
        )
    )
    journal.append(events.RunEnded(at=2.0, verdict=verdict, reason="", proofs=[], exit_status=0))
    journal.close()
    write_summary(run, summary_of(run, load_run_state(replay(run))))
    return run


def append(run, event):
    journal = JournalWriter(run.journal)
    journal.append(event)
    journal.close()


@pytest.fixture
def journals_read(monkeypatch):
    read = []

    def counted(run):
        read.append(run.name)
        return replay(run)

    monkeypatch.setattr(find_resumable, "replay", counted)
    return read


def test_finished_runs_cost_no_journal(tmp_path, journals_read):
    """Many finished runs and an old one that failed: it is found without one journal being read."""
    failed = run_with(tmp_path, "failed", at=1.0)
    for number in range(20):
        run_with(tmp_path, "learned", at=10.0 + number)
    assert newest_resumable(tmp_path).name == failed.name
    assert journals_read == []


def test_nothing_to_resume_costs_no_journal(tmp_path, journals_read):
    """Only finished runs: that is known from the summaries alone."""
    for verdict in ("learned", "unproven", "not-learned"):
        run_with(tmp_path, verdict)
    with pytest.raises(UnknownRun):
        newest_resumable(tmp_path)
    assert journals_read == []


def test_a_journal_that_went_on_is_read(tmp_path, journals_read):
    """A run that was judged, resumed, and then lost its supervisor: the summary is of an earlier end, and not believed."""
    run = run_with(tmp_path, "not-learned")
    assert not is_resumable(run)
    append(run, events.RunContinued(at=3.0, supervisor=1, holdfast="0"))
    append(run, events.AttemptStarted(at=4.0, attempt=1, pid=1, command=["x"]))
    assert is_resumable(run)
    assert journals_read == [run.name]


def test_a_run_without_a_summary_is_read(tmp_path, journals_read):
    """A killed supervisor leaves no summary."""
    run = run_with(tmp_path, "interrupted")
    run.summary.unlink()
    assert is_resumable(run)
    assert journals_read == [run.name]


def changed(**fields):
    return lambda summary: json.dumps({**summary, **fields})


@pytest.mark.parametrize(
    "spoil",
    [
        changed(dir="/somewhere/else"),
        changed(run="other-1"),
        changed(schema=99),
        changed(journal_bytes=1),
        changed(journal_bytes="many"),
        changed(verdict="splendid"),
        changed(verdict=None),
        lambda _: "",
        lambda _: "[]",
        lambda _: "[" * 100_000,
        lambda _: '{"schema": ' + "9" * 5000 + "}",
        lambda summary: json.dumps(summary) + " " * MAX_SUMMARY_BYTES,
        lambda _: "\x00",
    ],
)
def test_a_summary_that_does_not_agree_is_not_believed(tmp_path, journals_read, spoil):
    """Of another folder, another schema, hostile or too large: the journal decides, and nothing is raised."""
    run = run_with(tmp_path, "failed")
    run.summary.write_text(spoil(json.loads(run.summary.read_text())))
    assert recorded_verdict(run) is None
    assert is_resumable(run)
    assert journals_read == [run.name]


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "zero"])
def test_a_summary_that_is_no_file_is_not_waited_for(tmp_path, kind):
    """A FIFO, a folder, a link or a device under its name: passed over."""
    run = run_with(tmp_path, "learned")
    kept = run.summary.rename(run.path / "elsewhere.json")
    if kind == "fifo":
        os.mkfifo(run.summary)
    elif kind == "folder":
        run.summary.mkdir()
    else:
        run.summary.symlink_to(kept if kind == "link" else "/dev/zero")
    assert recorded_verdict(run) is None
    assert not is_resumable(run)
