"""A small, fixed slice of bench/robustness: kills, faults of the disk and mutated inputs, each from a seed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench" / "robustness"
SEED = 7


@pytest.fixture(scope="module", autouse=True)
def _bench_on_the_path():
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


@pytest.mark.long  # it waits for processes of its own, and has failed once on a loaded machine
def test_mutated_inputs_end_in_a_sentence_or_a_result():
    """200 spoiled files of every kind: no traceback, no hang, no memory, nothing written outside, no code run, nothing leaked."""
    import mutations

    result = mutations.run(200, SEED, quick=True)
    assert result.cases == 200
    assert not result.found, "\n".join(f"case {one.number}: {one.group}\n{one.detail}" for one in result.found)


def test_a_storm_of_kills_changes_no_bit():
    """A kill of the training, one of the supervisor and one of both: resumed each time, and the weights of an unharmed run."""
    import kills

    (storm,) = kills.run(3, SEED, trainings=kills.TRAININGS[:1], lanes=1)
    assert storm.kills == {"training": 1, "supervisor": 1, "family": 1}
    assert storm.identical
    assert not storm.broken


def test_faults_of_the_disk_end_in_a_verdict_or_a_sentence():
    """Eight calls of the supervisor fail, one after another: never a traceback, and what was begun can be resumed."""
    import faults

    why = faults.why_not_possible()
    if why:
        pytest.skip(why)
    found, _ = faults.run(8, SEED)
    assert [one.broken for one in found] == [[]] * 8, "\n".join(
        f"{one.fault.description}: {one.broken}" for one in found
    )


def test_the_storm_takes_nobody_else_for_its_supervisor(tmp_path):
    """A training that lost its supervisor has another parent: that one and its descendants are never killed."""
    lock = tmp_path / "lock"
    lock.write_text("1\n")
    asked = {"folder": str(tmp_path), "kills": [[1, "family"]], "session": os.getsid(0)}
    program = "import storm; storm._kill = lambda *_: print('killed'); storm.step_done(1); print(storm._supervisor())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=BENCH / "programs", capture_output=True, text=True, check=True,
        env={**os.environ, "ROBUSTNESS": json.dumps(asked), "HOLDFAST_LOCK": str(lock), "HOLDFAST_ATTEMPT": "1"},
    )  # fmt: skip
    assert done.stdout == "None\n"


def test_the_storm_kills_a_whole_family_although_the_death_of_a_worker_raises(tmp_path):
    """As the handler of a DataLoader does: the training would end with a traceback, and its supervisor would live on."""
    training = """
import os, psutil, signal, subprocess, sys, storm

def raise_for_a_worker(*_):
    raise RuntimeError("a worker was killed")

def kill_and_wait(process, kill=psutil.Process.kill):
    kill(process)
    process.wait()

signal.signal(signal.SIGCHLD, raise_for_a_worker)
psutil.Process.kill = kill_and_wait
workers = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
storm._kill("family", os.getppid())
"""
    supervisor = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", supervisor, training],
        cwd=BENCH / "programs", capture_output=True, text=True, check=False,
        env={**os.environ, "ROBUSTNESS": json.dumps({"folder": str(tmp_path), "kills": []})},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == -signal.SIGKILL
