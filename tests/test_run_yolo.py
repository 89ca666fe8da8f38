"""A YOLO training under the real program, killed in its second epoch: it goes on from last.pt with nothing told."""

from __future__ import annotations

import sys

import pytest
from running import holdfast_run
from squares import make_squares

from holdfast.words import events

pytest.importorskip("ultralytics")


def test_ultralytics_goes_on_by_itself(tmp_path):
    """Neither --checkpoint nor --resume-with: the adapter knows. The last step is exact, the weights are in the vault, the
    second attempt starts at epoch 2 with the steps numbered on, and all planned epochs are done.
    """
    make_squares(tmp_path)
    script = tmp_path / "train.py"
    # Only the first attempt dies: as with a real kill, the command itself does not change.
    script.write_text(script.read_text().replace('sys.argv[2] == "dies"', 'os.environ["HOLDFAST_ATTEMPT"] == "1"'))
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
    assert (second["resumed"]["how"], second["resumed"]["step"]) == ("ultralytics", 2)
    assert (second["first_step"], second["last_step"]) == (3, 6)
    epochs = [(event.epoch, event.planned) for event in ran.of(events.Epoch)]
    assert epochs == [(1, 3), (2, 3), (3, 3)]
    proof = next(proof for proof in ran.summary["proofs"] if proof["name"] == "planned-steps-done")
    assert proof["answer"] == "holds"
