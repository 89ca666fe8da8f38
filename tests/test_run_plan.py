"""Plans under the real program: stages, remedies, gates, and going on in the middle of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest
from running import HOLDFAST, SAVES, training

from holdfast.diagnosis.run_state import load_run_state
from holdfast.diagnosis.stages import load_staged_run
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay
from holdfast.storage.plan import load
from holdfast.supervisor.stages import Stages

STAGED = """
name = "staged"
command = ["{python}", "train.py"]
checkpoint = "state.pt"
resume_with = "--resume {{checkpoint}}"
backoff_s = 0.0

[[stages]]
name = "first"

[[stages]]
name = "second"
from = "last"
command = ["{python}", "train.py", "--resume", "{{weights}}", "second"]
"""


def run(folder, *words, env=None, timeout=200):
    """`holdfast WORDS`, without the check before it: its exit status, its summary and what it said."""
    command, *rest = map(str, words)
    options = ["--no-check", "--json"] if command == "run" else ["--json"]
    done = subprocess.run(
        [HOLDFAST, command, *options, *rest], cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr


def test_each_stage_begins_with_what_the_one_before_left(tmp_path):
    training(tmp_path, SAVES)
    (tmp_path / "plan.toml").write_text(STAGED.format(python=sys.executable))
    code, summary, said = run(tmp_path, "run", "plan.toml", env={"STEPS": "40"})
    assert code == 0, said
    assert next((stage["name"], stage["verdict"]) for stage in summary["stages"]) == ("first", "learned")
    assert summary["stages"][1]["weights"].endswith("state.pt")
    assert [attempt["stage"] for attempt in summary["attempts"]] == ["first", "second"]
    folder = tmp_path / ".holdfast/runs/staged-1"
    for report in (folder, folder / "stages/1-first", folder / "stages/2-second"):
        assert (report / "report.html").is_file()
    assert "stages/1-first/report.html" in (folder / "report.html").read_text()
    told = subprocess.run([HOLDFAST, "status"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "stage 2, second" in told


def test_it_can_be_ended_while_it_measures(tmp_path):
    """Between stages, while a trial runs: SIGTERM ends it in an orderly way, with a record that can be gone on with."""
    training(tmp_path, SAVES)
    (tmp_path / "plan.toml").write_text(STAGED.format(python=sys.executable))
    plan = load.read(tmp_path / "plan.toml")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()

    def fits(_plan):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    plan = msgspec.structs.replace(plan, stages=[msgspec.structs.replace(plan.stages[0], skip_if_oom=True)])
    reached = Stages(
        folder, plan, listeners=[], listeners_of=lambda _: [], done=lambda *_: None, fits=fits
    ).run()  # fmt: skip
    assert (reached.outcome.value, reached.exit_status) == ("interrupted", 143)
    assert load_staged_run(replay(folder)).ended.verdict == "interrupted"


def test_a_plan_goes_on_in_the_stage_that_it_was_in(tmp_path):
    """SIGTERM in the second stage: the first is not done again."""
    ends = """
if "second" in sys.argv and FIRST:
    def forward(step):
        if step == 45:
            os.kill(int(open("supervisor").read()), signal.SIGTERM)
            time.sleep(60)
        return nn.functional.mse_loss(model(x), y)
STEPS = 80 if "second" in sys.argv else 40
"""
    training(tmp_path, SAVES + ends)
    (tmp_path / "plan.toml").write_text(STAGED.format(python=sys.executable))
    process = subprocess.Popen(
        [HOLDFAST, "run", "--no-check", "--json", "plan.toml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    (tmp_path / "supervisor").write_text(str(process.pid))
    out, said = process.communicate(timeout=200)
    assert process.returncode == 143, said
    assert json.loads(out.splitlines()[-1])["verdict"] == "interrupted"
    code, summary, said = run(tmp_path, "resume", "staged-1")
    assert code == 0, said
    assert [(attempt["stage"], attempt["n"]) for attempt in summary["attempts"]] == [
        ("first", 1),
        ("second", 1),
        ("second", 2),
    ]
    assert summary["attempts"][-1]["last_step"] == 40  # from 41 to 80, numbered from where the stage began


def test_a_gate_that_stays_closed_ends_the_plan(tmp_path):
    """To resume it as it is would only judge it again; with a plan that asks for less it goes on."""
    training(tmp_path, SAVES)
    plan = STAGED.replace('name = "first"', 'name = "first"\ngate = {{ metric = "mAP50", at_least = 0.5 }}')
    (tmp_path / "plan.toml").write_text(plan.format(python=sys.executable))
    code, summary, _ = run(tmp_path, "run", "plan.toml")
    assert code == 3
    assert summary["verdict"] == "not-learned"
    assert "no mAP50 was recorded" in summary["reason"]
    assert len(summary["stages"]) == 1
    journal = tmp_path / ".holdfast" / "runs" / "staged-1" / "journal.jsonl"
    before = journal.read_bytes()
    code, refused, _ = run(tmp_path, "resume", "staged-1")
    assert (code, journal.read_bytes()) == (2, before)
    assert "cannot continue: the gate of stage first stays closed" in str(refused)
    (tmp_path / "plan.toml").write_text(STAGED.format(python=sys.executable))
    code, summary, said = run(tmp_path, "resume", "staged-1", "plan.toml")
    assert (code, len(summary["stages"])) == (0, 2), said


def test_what_was_spoiled_is_not_gone_on_from_when_it_is_resumed(tmp_path):
    """A NaN ends the run; the user resumes it: from what was saved before, although newer files are there."""
    spoils = (
        SAVES
        + """
def forward(step):
    loss = nn.functional.mse_loss(model(x), y)
    return loss * float("nan") if FIRST and step == 12 else loss
def after(step):
    time.sleep(0.1 if step > 12 else 0)
    torch.save({"model": model.state_dict(), "step": step}, f"state-{step:03d}.pt")
"""
    )
    script = training(tmp_path, spoils)
    code, summary, said = run(
        tmp_path, "run", "--max-attempts", "1", "--checkpoint", "state-*.pt", "--resume-with", "--resume {checkpoint}", "--",
        sys.executable, script,
    )  # fmt: skip
    assert code in (3, 4), said
    code, summary, said = run(tmp_path, "resume", "train-1", "--max-attempts", "1")
    assert code == 0, said
    assert summary["attempts"][1]["resumed"]["checkpoint"].endswith("state-011.pt")


def test_one_stage_has_its_gate_too(tmp_path):
    training(tmp_path)
    text = f'name = "one"\ncommand = ["{sys.executable}", "train.py"]\n[[stages]]\nname = "only"\ngate = {{ at_least = 0.5 }}\n'
    (tmp_path / "plan.toml").write_text(text)
    code, summary, _ = run(tmp_path, "run", "plan.toml")
    assert (code, summary["verdict"]) == (3, "not-learned")


def test_the_user_is_told_of_stages_and_of_the_end(tmp_path):
    training(tmp_path, SAVES)
    (tmp_path / "plan.toml").write_text(STAGED.format(python=sys.executable))
    (tmp_path / "tell.py").write_text("import sys\nopen('told', 'a').write(sys.stdin.read())\n")
    code, _, said = run(
        tmp_path, "run", "--on-event", f"{sys.executable} {tmp_path / 'tell.py'}", "plan.toml", env={"STEPS": "40"}
    )
    assert code == 0, said
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    # Each is told by a process of its own, and they may overtake one another.
    assert sorted((one["event"], one["run"]) for one in told if "end" in one["event"]) == [
        ("end", "staged-1"),
        ("stage-end", "staged-1"),
        ("stage-end", "staged-1"),
    ]


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_effective_one(tmp_path):
    """The least change that answers it, in the command's own words, and it is told."""
    runs_out = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--accumulation-steps", type=int)
asked = parser.parse_args()
def after(step):
    if step == 5 and asked.batch_size > 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
"""
    script = training(tmp_path, runs_out)
    code, summary, said = run(
        tmp_path, "run", "--max-attempts", "6", "--backoff", "0", "--", sys.executable, script, "--batch-size", "8",
        "--accumulation-steps", "2",
    )  # fmt: skip
    assert code == 0, said
    changes = [
        (change["setting"], change["before"], change["after"]) for a in summary["attempts"] for change in a["changes"]
    ]
    assert ("--batch-size", 8, 4) in changes
    assert ("--accumulation-steps", 2, 4) in changes
    assert "batch" in said


def test_time_that_is_used_up_ends_it_and_it_can_go_on(tmp_path):
    slow = SAVES + "\ndef forward(step):\n    time.sleep(0.02)\n    return nn.functional.mse_loss(model(x), y)\n"
    training(tmp_path, slow)
    text = f'command = ["{sys.executable}", "train.py"]\ncheckpoint = "state.pt"\nresume_with = "--resume {{checkpoint}}"\n'
    (tmp_path / "plan.toml").write_text(text + "[budget]\nhours = 0.0006\n")
    code, summary, said = run(tmp_path, "run", "--name", "short", "plan.toml", env={"STEPS": "100000"})
    assert code == 143, said
    assert "used up" in summary["reason"]
    assert summary["attempts"][0]["stopped_by"] == "budget"


YOLO = """
name = "shapes"
trainer = "ultralytics"
python = "{python}"
sample_every_s = 0.25

[settings]
model = "yolo11n.yaml"
data = "data.yaml"
imgsz = 32
batch = 4
nbs = 4
workers = 0
plots = false
device = "cpu"
amp = false
warmup_epochs = 0
optimizer = "AdamW"
lr0 = 0.001

[validation]
on_cpu = "always"

[[stages]]
name = "one"
settings = {{ epochs = 2 }}
gate = {{ at_least = 0.0 }}

[[stages]]
name = "two"
settings = {{ epochs = 1, imgsz = 64 }}
gate = {{ at_least = 0.0 }}
skip_if_oom = true
"""


@pytest.mark.long
def test_yolo_in_two_stages_is_measured_before_the_second(tmp_path):
    """What it reached is carried on, and the larger images are tried out before they are begun with."""
    pytest.importorskip("ultralytics")
    from squares import make_squares

    make_squares(tmp_path)
    (tmp_path / "plan.toml").write_text(YOLO.format(python=sys.executable))
    env = {"YOLO_CONFIG_DIR": str(tmp_path), "YOLO_OFFLINE": "true", "OMP_NUM_THREADS": "1"}
    # So few steps find nothing: that is not what is looked at here.
    code, summary, said = run(tmp_path, "run", "--rule", "metrics-all-zero=off", "plan.toml", env=env, timeout=280)
    assert code == 0, said
    first, second = summary["stages"]
    assert [(attempt["stage"], attempt["exit"]["code"]) for attempt in summary["attempts"]] == [("one", 0), ("two", 0)]
    assert second["weights"] == first["best"]
    assert "a short run at 64 px, batch 4, used up to" in second["expects"]
    assert (tmp_path / "runs/detect/shapes-two/results.csv").is_file()
    two = RunFolder(tmp_path / ".holdfast/runs/shapes-1/stages/2-two")
    assert load_run_state(replay(two)).attempt.metrics.final.source == "best.pt on the CPU"
    assert f"{second['results']}/weights/best.pt" == summary["deliverables"]["best"]
