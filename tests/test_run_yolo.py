"""A YOLO training under the real program, killed in its second epoch: it goes on with nothing told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from running import holdfast_run
from squares import make_squares

from holdfast.schema import events

pytest.importorskip("ultralytics")


RESULT = """
import hashlib
results = open(model.trainer.csv).read().splitlines()
weights = [v.numpy().tobytes() for v in torch.load(model.trainer.last, weights_only=False)["model"].state_dict().values()]
rows = [line.split(",")[2:] for line in results]
print("RESULT", hashlib.sha256(b"".join(weights) + repr(rows).encode()).hexdigest(), flush=True)
"""
QUIET = {"YOLO_OFFLINE": "true"}


def result(text):
    return next(line.split()[1] for line in text.splitlines() if line.startswith("RESULT"))


def test_killed_twice_it_ends_as_if_it_had_not_been(tmp_path):
    """In the middle of an epoch, with nothing told and nothing changed: the same weights and the same table come out."""
    script = make_squares(tmp_path) / "train.py"
    text = script.read_text()
    dies = """
seen = []
def die(trainer):
    seen.append(trainer.epoch)
    if (os.environ.get("HOLDFAST_ATTEMPT"), trainer.epoch, len(seen)) in (("1", 1, 3), ("2", 1, 2)):
        os.kill(os.getpid(), signal.SIGKILL)
model.add_callback("on_train_batch_end", die)
"""
    script.write_text(text.replace('if sys.argv[2] == "dies":', f"{dies}if False:") + RESULT)
    quiet = {**QUIET, "YOLO_CONFIG_DIR": str(tmp_path)}
    bare = subprocess.run(
        [sys.executable, script, tmp_path], env={**os.environ, **quiet, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    ran = holdfast_run(
        tmp_path, sys.executable, script, tmp_path, options=["--max-lost-work", 0], env=quiet, timeout=280
    )
    assert ran.code == 0, ran.stderr
    assert result(ran.stdout) == result(bare.stdout)
    assert "Warning" not in ran.stderr
    attempts = ran.summary["attempts"]
    assert [attempt["cause"] for attempt in attempts] == ["killed-externally", "killed-externally", None]
    assert [attempt["resumed"]["how"] for attempt in attempts[1:]] == ["snapshot", "snapshot"]
    assert [attempt["first_step"] for attempt in attempts[1:]] == [a["resumed"]["step"] + 1 for a in attempts[1:]]
    assert attempts[-1]["last_step"] == 6
    assert all(event.exact for event in ran.of(events.Restored))
    proof = next(proof for proof in ran.summary["proofs"] if proof["name"] == "planned-steps-done")
    assert proof["answer"] == "holds"


def test_without_snapshots_it_goes_on_from_its_own_checkpoint(tmp_path):
    """Neither --checkpoint nor --resume-with: the adapter knows. The last step is exact, the weights are in the vault, the
    second attempt starts at epoch 2 with the steps numbered on, and all planned epochs are done.
    """
    make_squares(tmp_path)
    script = tmp_path / "train.py"
    text = script.read_text().replace("import torch\n", 'os.environ.pop("HOLDFAST_SNAPSHOTS")\nimport torch\n', 1)
    # Only the first attempt dies: as with a real kill, the command itself does not change.
    script.write_text(text.replace('sys.argv[2] == "dies"', 'os.environ["HOLDFAST_ATTEMPT"] == "1"'))
    ran = holdfast_run(
        tmp_path,
        sys.executable,
        script,
        tmp_path,
        env={"YOLO_CONFIG_DIR": str(tmp_path), "YOLO_OFFLINE": "true"},
        timeout=280,
    )
    assert ran.code == 0, ran.stderr
    first, second = ran.summary["attempts"]
    assert (first["exit"]["signal"], first["last_step"], first["cause"]) == ("SIGKILL", 3, "killed-externally")
    assert {file["path"].rpartition("/")[2] for file in first["saved"]} == {"last.pt", "best.pt"}
    assert (second["resumed"]["how"], second["resumed"]["step"]) == ("framework", 2)
    assert (second["first_step"], second["last_step"]) == (3, 6)
    epochs = [(event.epoch, event.planned) for event in ran.of(events.Epoch)]
    assert epochs == [(1, 3), (2, 3), (3, 3)]
    proof = next(proof for proof in ran.summary["proofs"] if proof["name"] == "planned-steps-done")
    assert proof["answer"] == "holds"
