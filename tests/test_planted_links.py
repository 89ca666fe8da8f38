"""Links that somebody planted in a run folder: nothing is written through them, and no folder behind one is filled."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import pytest

from holdfast.probe.holdfast_probe import bootstrap, heartbeat, protocol, stack_dumps
from holdfast.probe.holdfast_probe.dry_run.write_guard import WriteGuard
from holdfast.probe.holdfast_probe.event_writer import EventWriter
from holdfast.probe.holdfast_probe.op_check.step_recorder import Recorder
from holdfast.probe.holdfast_probe.snapshots import fs
from holdfast.process.output_log import OutputLog, read_output
from holdfast.process.stack_dumps import StackReader
from holdfast.storage import checkpoint_backup, safe_files
from holdfast.storage.folder import RunFolder
from holdfast.supervisor.graceful_stop import GracefulStop


def _rank_file(folder):
    writer = EventWriter(str(folder), 0, 77)
    writer.write("probe-note", {"what": "x"})
    writer.close()


def _recorded_steps(folder):
    Recorder(None, SimpleNamespace(attempt_dir=str(folder)), 1, "a")._write({"event": "x"})


def _output(folder):
    log = OutputLog(folder / "stdout.log")
    log.write(b"x")
    log.close()


def _later_output(folder):
    log = OutputLog(folder / "other.log", head_bytes=1)
    log.write(b"xyz")
    log.close()


def _snapshot_now(folder):
    image = SimpleNamespace(attempt=SimpleNamespace(takes_snapshots=True))
    before = (folder / "victim").stat().st_mtime_ns
    assert GracefulStop(RunFolder(folder), lambda: image, 0.0).request_snapshot() is False
    assert (folder / "victim").stat().st_mtime_ns == before


WRITERS = {
    "rank-0.jsonl": _rank_file,
    "rank-0-pid-77.jsonl": lambda folder: (_rank_file(folder), _rank_file(folder)),
    "interpreters.jsonl": lambda folder: bootstrap._append_line(str(folder), "{}\n"),
    "steps-a.jsonl": _recorded_steps,
    "files.jsonl": lambda folder: WriteGuard(str(folder / "files.jsonl"), [])._report("made", "/x", "open"),
    "stdout.log": _output,
    "other.log.newest": _later_output,
    "snapshot-now": _snapshot_now,
    "heartbeat": lambda folder: heartbeat.create(str(folder / "heartbeat"), in_memory=False),
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_link(tmp_path, name):
    """Each file that Holdfast or its probe writes below a run folder, with a link to a file of the user's in its place."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / name).symlink_to(victim)
    with contextlib.suppress(OSError):
        WRITERS[name](tmp_path)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_to_nothing_does_not_make_a_file(tmp_path, name):
    """A link that leads to a name that is free: no file of that name comes into being."""
    (tmp_path / "victim").write_bytes(b"")
    (tmp_path / name).symlink_to(tmp_path / "new")
    with contextlib.suppress(OSError):
        WRITERS[name](tmp_path)
    assert not (tmp_path / "new").exists()


def test_stacks_are_not_written_through_a_link(tmp_path):
    """The handler would write into the file for as long as the training lives: it is not armed."""
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / protocol.stack_file(77)).symlink_to(tmp_path / "victim")
    assert stack_dumps.register(str(tmp_path), 77) == (None, None)


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path):
    """Opening a FIFO to read would wait for ever: the recorded output and the stacks pass over it."""
    os.mkfifo(tmp_path / "stdout.log")
    assert list(read_output(tmp_path / "stdout.log")) == []
    reader = StackReader(lambda _: tmp_path / "stdout.log")
    reader._offsets[1] = 0
    assert reader._read(1) == ""


def test_what_is_kept_of_an_attempt_is_not_put_behind_a_link(tmp_path):
    """Neither where the folder for it is one, nor where a folder in it is one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "state.pt").write_bytes(b"1")
    for into in (tmp_path / "kept", tmp_path / "kept2" / "saved"):
        into.parent.mkdir(exist_ok=True)
        into.symlink_to(elsewhere)
        kept, left_out = checkpoint_backup.back_up([("state.pt", 1)], into, 0, tmp_path)
        assert not kept
        assert "link" in left_out[0]
    (tmp_path / "kept3").mkdir()
    (tmp_path / "kept3" / "deep").symlink_to(elsewhere)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "state.pt").write_bytes(b"1")
    kept, left_out = checkpoint_backup.back_up([("deep/state.pt", 1)], tmp_path / "kept3", 0, tmp_path)
    assert not kept
    assert "link" in left_out[0]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("said", ["²", "٣", " 5", "-1", "1_0", "9" * 5000, ""])
def test_the_caller_of_sudo_is_a_number_in_ascii(monkeypatch, said):
    """Whatever else stands in SUDO_UID names nobody, and raises nothing."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", said)
    assert safe_files.trusted_users() == {0}
    assert fs._trusted_users() == {0}
