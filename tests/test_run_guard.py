"""A training under `holdfast.guard` and the supervisor: killed, restarted from its snapshot, and none the worse for it."""

from __future__ import annotations

import signal
import subprocess
import sys

from running import command, environment, holdfast, holdfast_run
from test_run_signals import wait_until

from holdfast.probe.holdfast_probe import heartbeat
from holdfast.schema import events

PYTHON = sys.executable
GUARDED = """
import hashlib, os, signal, sys, time
import torch
from torch import nn
import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(60, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
done = 0
with holdfast.guard(model=model, optimizer=optimizer) as run:
    for epoch in run.epochs(4):
        for inputs, targets in run.batches(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            done += 1
            after(done)
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(), flush=True)
"""
KILLED = """
def after(done):
    if os.environ.get("HOLDFAST_ATTEMPT") in ("1", "2") and done == 17:
        os.kill(os.getpid(), signal.SIGKILL)
"""
OWN_NUMBERS = """
import glob, random
mine = random.Random(os.urandom(8))
def after(done):
    if os.environ["HOLDFAST_ATTEMPT"] == "1" and done == 5:
        run.snapshot()
    if os.environ["HOLDFAST_ATTEMPT"] == "1" and done == 9:
        while not glob.glob(os.environ["HOLDFAST_SNAPSHOTS"] + "/*.snapshot"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""
SLOW = """
def after(done):
    time.sleep(0.05)
"""


def script(folder, part):
    path = folder / "train.py"
    path.write_text(GUARDED.replace("\ndone = 0\n", f"\ndone = 0\n{part}\n"))
    return path


def bare(folder):
    done = subprocess.run(
        [PYTHON, str(script(folder, KILLED))], env=environment(), cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_killed_twice_it_ends_as_if_it_had_not_been(tmp_path):
    """The steps go on where the snapshot was, nothing is waited for, and the time that was lost is in the ledger."""
    expected = bare(tmp_path)
    ran = holdfast_run(tmp_path, PYTHON, script(tmp_path, KILLED), options=["--max-lost-work", "0", "--backoff", "30"])
    assert ran.code == 0, ran.stderr
    assert ran.stdout.strip().splitlines()[-1] == expected
    attempts = ran.summary["attempts"]
    assert [attempt["cause"] for attempt in attempts] == ["killed-externally", "killed-externally", None]
    assert [attempt["resumed"] and attempt["resumed"]["how"] for attempt in attempts] == [None, "snapshot", "snapshot"]
    assert attempts[0]["last_step"] == 17
    assert attempts[2]["last_step"] == 60
    for attempt in attempts[1:]:
        assert attempt["first_step"] == attempt["resumed"]["step"] + 1
        again = (
            attempts[attempt["n"] - 2]["last_step"] - attempt["resumed"]["step"] - 1
        )  # it died within the last batch
        assert attempt["replayed"] == ({"compared": again, "differs_at": None} if again else None)
    buckets = ran.summary["goodput"]["buckets"]
    assert buckets["restart"] > 0
    assert buckets["snapshot_stall"] > 0
    assert buckets["waiting"] < 20
    assert abs(sum(buckets.values()) - ran.summary["goodput"]["wall_s"]) < 0.1
    assert ran.summary["coverage"]["snapshots"] == "seen: holdfast.guard"
    epochs = [(event.epoch, event.planned) for event in ran.of(events.Epoch)]
    assert sorted(set(epochs)) == [(1, 4), (2, 4), (3, 4), (4, 4)]  # an end that is made again is told again
    assert epochs == sorted(epochs)


def test_a_term_is_answered_with_a_last_snapshot(tmp_path):
    """Then `holdfast resume` goes on at the very step where it stood."""
    expected = bare(tmp_path)
    path = script(tmp_path, SLOW)
    process = subprocess.Popen(
        command(tmp_path, PYTHON, path, options=["--max-lost-work", "1000"]),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    beats = str(tmp_path / "run" / "heartbeat")
    wait_until(lambda: 0 in (seen := heartbeat.read(beats)) and seen[0].step >= 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    ran = holdfast(tmp_path, "resume", "run")
    assert ran.code == 0, ran.stderr
    assert ran.stdout.strip().splitlines()[-1] == expected
    first, second = ran.summary["attempts"]
    assert first["last_step"] - second["resumed"]["step"] <= 8  # what it did while it was being ended
    assert second["resumed"]["how"] == "snapshot"


def test_a_random_source_that_is_not_kept_is_found_out(tmp_path):
    """What is done again after a death comes out otherwise, and that is said: exactness is tested, not believed."""
    path = script(tmp_path, OWN_NUMBERS)
    path.write_text(path.read_text().replace("(model(inputs), targets)", "(model(inputs) * mine.random(), targets)"))
    ran = holdfast_run(tmp_path, PYTHON, path, options=["--max-lost-work", 3600])
    assert ran.code == 0, ran.stderr
    assert ran.summary["attempts"][1]["resumed"]["step"] == 5
    assert ran.summary["attempts"][1]["replayed"] == {"compared": 1, "differs_at": 6}
    assert "resume-inexact" in ran.rules
