"""A fault of Holdfast's own between two attempts is noted, and the run goes on with what is known."""

from __future__ import annotations

import json
import os
import struct
import sys

import pytest
from running import AGAIN, SAVES, holdfast_run, training

from holdfast.diagnosis.run_state import load_run_state
from holdfast.schema import events
from holdfast.schema.plan import Budget, Plan
from holdfast.schema.verdicts import Outcome
from holdfast.storage.folder import create
from holdfast.storage.journal import replay
from holdfast.supervisor import supervisor
from holdfast.supervisor.resume_point import find_resume_point, saved_files
from holdfast.testing.histories import entries

FAILS_ONCE = """
import os, pathlib, signal
if not pathlib.Path("again").exists():
    pathlib.Path("again").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


WAITS = "import time; time.sleep(600)"


def plan_for(folder, program=FAILS_ONCE, **more):
    command = [sys.executable, "-c", program]
    return Plan(cwd=str(folder), command=command, budget=Budget(attempts=3), backoff_s=0.0, keep_awake=False, **more)


def remarks(run):
    return [e.event for e in replay(run) if isinstance(e.event, events.SupervisorNote)]


def boom(*_args, **_more):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    "name", ["saved_files", "find_resume_point", "remedy_for", "corrupt_from_step", "apply_changes", "cause_of"]
)
def test_the_run_goes_on(tmp_path, monkeypatch, name):
    """Whatever raises between the attempts: the second one starts, and the run ends with a verdict."""
    monkeypatch.setattr(supervisor, name, boom)
    run = create(["x"], root=tmp_path)
    reached = supervisor.start(run, plan_for(tmp_path))
    assert reached.exit_status == 0
    assert len([e for e in replay(run) if isinstance(e.event, events.AttemptEnded)]) == 2
    assert any("boom" in remark.detail for remark in remarks(run))


@pytest.mark.parametrize("name", ["after_end", "verdict"])
def test_what_cannot_be_decided_ends_the_run_with_a_verdict(tmp_path, monkeypatch, name):
    """No further attempt where nobody knows whether there may be one; and a word in any case."""
    monkeypatch.setattr(supervisor, name, boom)
    run = create(["x"], root=tmp_path)
    reached = supervisor.start(run, plan_for(tmp_path))
    assert reached.outcome is (Outcome.FAILED if name == "after_end" else Outcome.UNPROVEN)
    assert any(isinstance(e.event, events.RunEnded) for e in replay(run))


@pytest.mark.parametrize("name", ["Sensors", "Attempt"])
def test_a_fault_while_watching_ends_the_attempt_and_not_the_run(tmp_path, monkeypatch, name):
    """The child is ended, the attempt is described, and attempts are spent as on any failure."""
    monkeypatch.setattr(supervisor, name, boom)
    run = create(["x"], root=tmp_path)
    reached = supervisor.start(run, plan_for(tmp_path, WAITS))
    assert reached.outcome is Outcome.FAILED
    assert any(isinstance(e.event, events.AttemptEnded) for e in replay(run))


def test_a_listener_that_fails_is_only_noted(tmp_path):
    """Who shows or tells something cannot end a training."""
    run = create(["x"], root=tmp_path)
    assert supervisor.start(run, plan_for(tmp_path), [boom]).exit_status == 0
    assert len([remark for remark in remarks(run) if "notifying" in remark.what]) == 1


def test_resume_goes_on_too(tmp_path, monkeypatch):
    """What a former supervisor left is looked at with the same care."""
    run = create(["x"], root=tmp_path)
    (tmp_path / "again").touch()
    started = events.RunStarted(
        at=1.0, schema=1, run=run.name, command=["x"], cwd=".", holdfast="0", platform="", python="3", supervisor=1
    )
    attempt = events.AttemptStarted(at=2.0, attempt=1, pid=2**22 + 1, command=["x"])
    run.journal.write_bytes(b"".join(events.encode(event) + b"\n" for event in (started, attempt)))
    for name in ("end_leftovers", "saved_files", "find_resume_point", "corrupt_from_of_last_attempt"):
        monkeypatch.setattr(supervisor, name, boom)
    assert supervisor.take_over(run, plan_for(tmp_path)).exit_status == 0
    assert len([remark for remark in remarks(run) if "boom" in remark.detail]) >= 4


def seen(folder):
    """An attempt that failed, as the judge sees it."""
    attempt = events.AttemptStarted(at=0.0, attempt=1, pid=1, command=["x"])
    return load_run_state(entries([attempt, events.AttemptEnded(at=1.0, attempt=1, code=1)]))


def hostile_headers():
    nested = b"[" * 200_000
    for text in (
        b'{"w": {"data_offsets": [0, 1e999]}}',
        b'{"w": {"data_offsets": [0, NaN]}}',
        b'{"w": {"data_offsets": [0, ' + b"9" * 5000 + b"]}}",
        b'{"w": {"data_offsets": ' + nested + b"}}",
        b'{"w": ' + nested,
        nested,
        b'{"w": {"data_offsets": [0, -1]}}',
        b'{"w": {"data_offsets": [0, {}]}}',
    ):
        yield struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize("data", list(hostile_headers()), ids=range(8))
def test_hostile_files_among_checkpoints_are_passed_over(tmp_path, data):
    """A link to itself, a FIFO, a safetensors header that no number fits: the whole one beside them is resumed from."""
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(data)
    header = json.dumps({"w": {"data_offsets": [0, 4]}}).encode()
    good = tmp_path / "good.safetensors"
    good.write_bytes(struct.pack("<Q", len(header)) + header + b"abcd")
    os.utime(good, (10, 10))
    plan = Plan(cwd=str(tmp_path), command=["x"], checkpoint="*.safetensors", resume_with="--resume {checkpoint}")
    state = seen(tmp_path)
    assert find_resume_point(state, plan).checkpoint == str(good.resolve())
    assert saved_files(state, plan)


def test_a_link_to_itself_does_not_end_a_real_run(tmp_path):
    """As it was found: `--checkpoint` matches such a link, the training dies once, and goes on from its checkpoint."""
    part = SAVES + "\nsaves = after\ndef after(step):\n    saves(step)\n    if FIRST and step == 12: die()\n"
    (tmp_path / "state-loop.pt").symlink_to("state-loop.pt")
    options = ("--checkpoint", "state*.pt", *AGAIN[2:], "--backoff", "0")
    ran = holdfast_run(tmp_path, sys.executable, training(tmp_path, part), options=options)
    assert ran.code == 0, ran.stderr
    assert ran.summary["attempts"][1]["resumed"]["step"] == 10


@pytest.mark.parametrize(("code", "as_json"), [(0, False), (3, False), (0, True)])
def test_a_run_folder_that_is_removed_while_the_run_lives(tmp_path, code, as_json):
    """A sentence with the verdict, and the status of the verdict; no traceback."""
    words = [sys.executable, "-c", f"import shutil, sys; shutil.rmtree('run'); sys.exit({code})"]
    options = ["--backoff", "0", *(["--json"] if as_json else [])]
    ran = holdfast_run(tmp_path, *words, options=options)
    assert ran.code == (0 if code == 0 else 4), ran.stderr
    assert "Traceback" not in ran.stderr
    if as_json:
        assert json.loads(ran.stdout.splitlines()[-1])["verdict"] == "unproven"
    else:
        assert ("unproven: " if code == 0 else "failed: ") in ran.stderr
        assert "was removed or replaced during the run" in ran.stderr


def test_no_words_for_resume_with_start_nothing(tmp_path):
    """An open quote is found before hours were spent that nothing can go on from."""
    options = ("--checkpoint", "state.pt", "--resume-with", "--resume '{checkpoint}")
    ran = holdfast_run(tmp_path, sys.executable, training(tmp_path), options=options)
    assert (ran.code, "Traceback" in ran.stderr) == (2, False), ran.stderr
    assert "cannot be split into arguments" in ran.stderr
