"""The real program on real trainings: what a user sees, what is recorded, what is tried again."""

from __future__ import annotations

import json
import os
import random
import shlex
import sys

import pytest
from running import AGAIN, SAVES, holdfast, holdfast_run, training

from holdfast.schema import events

PYTHON = sys.executable


def test_a_healthy_training_is_learned_and_looks_as_before(tmp_path):
    """Exit 0, its own output and nothing else on stdout, every step recorded, a summary with its proofs."""
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path))
    assert ran.code == 0, ran.stderr
    assert ran.stdout == "done\n"
    assert [event.step for event in ran.of(events.Step)] == list(range(1, 31))
    summary = ran.summary
    assert summary["verdict"] == "learned"
    assert summary["attempts"][0]["exit"] == {"code": 0, "signal": None}
    assert (summary["attempts"][0]["first_step"], summary["attempts"][0]["last_step"]) == (1, 30)
    assert summary["findings"] == []
    assert {"loss-fell", "losses-finite", "weights-moved"} <= {
        p["name"] for p in summary["proofs"] if p["answer"] == "holds"
    }
    assert "learned" in ran.stderr
    assert str(ran.folder) in ran.stderr.replace("\n", "")


PHASES = ("after the step", "in a backward", "in a forward")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ten_kills_at_random_steps(tmp_path, seed):
    """SIGKILL after SIGKILL, in different phases of a step: each time the last step is exact, the cause is named and what
    was saved is in the vault; the run finishes all the same.
    """
    choice = random.Random(seed)
    kills = [(step, choice.choice(PHASES)) for step in sorted(choice.sample(range(6, 195), 10))]
    part = (
        SAVES
        + f"""
kill, phase = dict(enumerate({kills!r}, 1)).get(int(os.environ["HOLDFAST_ATTEMPT"]), (None, None))
plain, saves = forward, after

def forward(step):
    due = kill is not None and step == kill + 1
    if due and phase == "in a forward":
        die()
    loss = plain(step)
    if due and phase == "in a backward":
        loss.register_hook(lambda grad: die())
    return loss

def after(step):
    saves(step)
    if step == kill and phase == "after the step":
        die()
"""
    )
    ran = holdfast_run(
        tmp_path,
        PYTHON,
        training(tmp_path, part),
        options=[*AGAIN, "--max-attempts", 11, "--backoff", 0],
        env={"STEPS": "200"},
    )
    assert ran.code == 0, ran.stderr
    *killed, last = ran.summary["attempts"]
    assert [attempt["last_step"] for attempt in killed] == [step for step, _ in kills]
    assert {attempt["exit"]["signal"] for attempt in killed} == {"SIGKILL"}
    assert {attempt["cause"] for attempt in killed} == {"killed-externally"}
    newest = 0
    for attempt, following in zip(killed, [*killed[1:], last], strict=True):
        saved = attempt["last_step"] // 5 * 5
        if saved > newest:  # else it died before it saved anything of its own
            newest = saved
            assert [file["step"] for file in attempt["saved"]] == [saved]
            assert (ran.folder / "attempts" / str(attempt["n"]) / "saved" / "state.pt").is_file()
        assert following["resumed"]["step"] == newest
        assert following["first_step"] == newest + 1
    assert (last["last_step"], last["exit"]["code"]) == (200, 0)


def test_restart_that_starts_over_says_so(tmp_path):
    """Where how to resume is not known, the user is told plainly, and told what to do about it."""
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, "def after(step):\n    if FIRST and step == 7: die()"))
    assert ran.code == 0
    assert "attempt 2 starts over" in ran.stderr
    assert "--resume-with" in ran.stderr
    assert ran.summary["attempts"][1]["first_step"] == 1


def test_a_checkpoint_of_another_run_is_not_gone_on_from(tmp_path):
    """A file that matches but is older than this run belongs to somebody else."""
    (tmp_path / "state.pt").write_bytes(b"old")
    os.utime(tmp_path / "state.pt", (1, 1))
    ran = holdfast_run(
        tmp_path, PYTHON, training(tmp_path, "def after(step):\n    if FIRST and step == 7: die()"), options=AGAIN
    )
    assert "starts over: no file of this run matches state.pt" in ran.stderr


def test_the_child_knows_its_attempt_and_checkpoint(tmp_path):
    part = SAVES + (
        "\nprint('attempt', os.environ['HOLDFAST_ATTEMPT'], 'from', os.environ.get('HOLDFAST_CHECKPOINT'), flush=True)\n"
        "saves = after\ndef after(step):\n    saves(step)\n    if FIRST and step == 12: die()\n"
    )
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=AGAIN)
    assert ran.stdout.splitlines()[:2] == ["attempt 1 from None", f"attempt 2 from {(tmp_path / 'state.pt').resolve()}"]


def test_exception_before_the_first_step_is_told_and_not_retried(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('no such dataset')\n")
    ran = holdfast_run(tmp_path, PYTHON, "train.py")
    assert ran.code == 4
    assert len(ran.summary["attempts"]) == 1
    assert ran.summary["attempts"][0]["cause"] == "python-exception"
    assert "no such dataset" in ran.stderr


def test_same_exception_twice_with_no_progress_is_given_up(tmp_path):
    ran = holdfast_run(
        tmp_path,
        PYTHON,
        training(tmp_path, "def after(step):\n    if step == 9: raise RuntimeError('bad batch')"),
        options=["--max-attempts", 5],
    )
    assert ran.code == 4
    assert [attempt["last_step"] for attempt in ran.summary["attempts"]] == [9, 9]
    assert "without progress" in ran.summary["decisions"][-1]["why"]


def test_max_attempts_bounds_kills(tmp_path):
    ran = holdfast_run(
        tmp_path, PYTHON, training(tmp_path, "def after(step):\n    if step == 3: die()"), options=["--max-attempts", 2]
    )
    assert ran.code == 4
    assert len(ran.summary["attempts"]) == 2
    assert ran.summary["verdict"] == "failed"


def test_losses_that_are_all_zero_stop_the_run(tmp_path):
    """Report 000: not 43 minutes but 20 steps, exit status 3, and a sentence."""
    part = "def forward(step):\n    time.sleep(0.05)\n    return (model(x) * 0).sum()"
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), env={"STEPS": "2000"})
    assert ran.code == 3
    assert ran.summary["verdict"] == "not-learned"
    finding = next(f for f in ran.summary["findings"] if f["rule"] == "loss-all-zero")
    assert (finding["severity"], finding["step"]) == ("fatal", 20)
    assert ran.summary["attempts"][0]["stopped_by"] == "loss-all-zero"
    assert ran.summary["attempts"][0]["last_step"] < 2000


def test_all_zero_is_not_learned_even_where_it_only_warns(tmp_path):
    """--on-finding warn lets it finish with exit 0, and the verdict is the same."""
    ran = holdfast_run(
        tmp_path,
        PYTHON,
        training(tmp_path, "def forward(step):\n    return (model(x) * 0).sum()"),
        options=["--on-finding", "warn"],
    )
    assert (ran.code, ran.summary["attempts"][0]["exit"]["code"]) == (3, 0)


def test_nan_stops_the_run(tmp_path):
    part = "plain = forward\ndef forward(step):\n    time.sleep(0.05)\n    return plain(step) * (float('nan') if step >= 10 else 1.0)"
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), env={"STEPS": "2000"})
    assert ran.code == 3
    found = {finding["rule"]: finding for finding in ran.summary["findings"]}
    assert found["loss-not-finite"]["step"] == 10
    # Whichever is proven first: three gradients or five losses in a row.
    fatal = [finding for finding in found.values() if finding["severity"] == "fatal"]
    assert {finding["step"] for finding in fatal} == {10}
    assert {finding["rule"] for finding in fatal} <= {"loss-not-finite", "gradients-not-finite"}


def test_observe_only_changes_nothing(tmp_path):
    """A dead run is described, and neither restarted nor kept, nor is a failing one stopped."""
    ran = holdfast_run(
        tmp_path, PYTHON, training(tmp_path, "def after(step):\n    if step == 8: die()"), options=["--observe-only"]
    )
    assert (ran.code, len(ran.summary["attempts"])) == (4, 1)
    assert ran.summary["attempts"][0]["cause"] == "killed-externally"


def test_a_hang_is_seen_with_its_stacks_and_survived(tmp_path):
    """Standing still with the same stacks twice: named, ended, tried again; the line that hung is in the evidence."""
    part = "def after(step):\n    if FIRST and step == 6:\n        stand_still()\ndef stand_still():\n    import threading\n    threading.Event().wait()"
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=["--hang-after", "1"])
    assert ran.code == 0, ran.stderr
    first = ran.summary["attempts"][0]
    assert (first["cause"], first["last_step"]) == ("step-hang", 6)
    finding = next(f for f in ran.summary["findings"] if f["rule"] == "step-hang")
    assert any("in stand_still" in line for line in finding["evidence"])


def test_slow_is_not_a_hang(tmp_path):
    """Long pauses in which something moves: the stacks differ, and it is left alone."""
    part = (
        "def after(step):\n    if step == 6:\n        deeper(time.time() + 4)\n"
        "def deeper(until):\n    time.sleep(0.1)\n    if time.time() < until:\n        deeper(until)\n"
    )
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=["--hang-after", "1"])
    assert ran.code == 0
    assert len(ran.summary["attempts"]) == 1


def test_json_is_the_last_line_of_stdout(tmp_path):
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path), options=["--json"])
    assert json.loads(ran.stdout.splitlines()[-1]) == ran.summary
    assert ran.stdout.splitlines()[0] == "done"


def test_on_event_gets_json_without_a_shell(tmp_path):
    """The overnight user's notification: start, finding, restart, end, each as JSON on stdin."""
    sink = tmp_path / "sink.py"
    sink.write_text("import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read())\n")
    told = tmp_path / "told; echo not a shell"
    ran = holdfast_run(
        tmp_path, PYTHON, training(tmp_path, "def after(step):\n    if FIRST and step == 7: die()"),
        options=["--on-event", shlex.join([PYTHON, str(sink), str(told)])],
    )  # fmt: skip
    messages = sorted((json.loads(line) for line in told.read_text().splitlines()), key=lambda message: message["at"])
    assert [message["event"] for message in messages] == ["start", "finding", "restart", "end"]
    assert all(message["run"] == "run" and message["message"] for message in messages)
    assert messages[-1]["verdict"] == ran.summary["verdict"]


def test_torchrun_ranks_have_files_of_their_own(tmp_path):
    part = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def after(step):
    if step == STEPS:
        store = dist.distributed_c10d._get_default_store()  # a rank that leaves first aborts one that still talks to it
        store.set("done-%d" % dist.get_rank(), "1")
        store.wait(["done-0", "done-1"])
        # Gloo's threads may still hold tensors while the interpreter is taken down, which aborts it now and then.
        import atexit
        atexit._run_exitfuncs()
        os._exit(0)
"""
    ran = holdfast_run(
        tmp_path, PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, training(tmp_path, part)
    )
    assert ran.code == 0, ran.stderr
    assert sorted(path.name for path in ran.run.attempt(1).rank_files()) == ["rank-0.jsonl", "rank-1.jsonl"]
    assert (ran.summary["attempts"][0]["last_step"], ran.summary["verdict"]) == (30, "learned")


def test_rules_explain_themselves(tmp_path):
    listed = holdfast(tmp_path, "rules")
    assert "loss-all-zero" in listed.stdout
    assert "What to do" in holdfast(tmp_path, "rules", "loss-all-zero").stdout
    near = holdfast(tmp_path, "rules", "loss-al-zero")
    assert (near.code, "did you mean loss-all-zero" in near.stderr) == (2, True)


def test_restart_that_cannot_start_keeps_the_record(tmp_path):
    """The script is gone by the second attempt: what the first one saved and all that is known of it stay."""
    script = training(
        tmp_path, "def after(step):\n    torch.save({}, 'ck.pt')\n    if step == 4:\n        os.remove(__file__); die()"
    )
    script.write_text(f"#!{PYTHON}\n" + script.read_text())
    script.chmod(0o755)
    ran = holdfast_run(tmp_path, script, options=["--backoff", 0])
    assert ran.code == 4
    assert (ran.folder / "attempts" / "1" / "saved" / "ck.pt").is_file()
    assert "could not be started again" in ran.summary["decisions"][-1]["why"]


def test_checkpoints_that_are_renamed_into_place(tmp_path):
    """The careful way to save, temporary name and rename: found, kept, gone on from, with the right step."""
    part = SAVES.replace('"state.pt")', '"state.tmp"); os.replace("state.tmp", "state.pt")') + (
        "\nsaves = after\ndef after(step):\n    saves(step)\n    if FIRST and step == 13: die()\n"
    )
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=[*AGAIN, "--backoff", 0])
    assert ran.code == 0, ran.stderr
    first, second = ran.summary["attempts"]
    assert [file["step"] for file in first["saved"]] == [10]
    assert (second["resumed"]["step"], second["first_step"]) == (10, 11)


def test_rotated_checkpoints_do_not_stop_a_restart(tmp_path):
    """A file that the training itself deleted is nothing that a restart could destroy."""
    part = "def after(step):\n    torch.save({}, f'{step}.pt')\n    if step > 1: os.remove(f'{step - 1}.pt')\n    if FIRST and step == 9: die()"
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=["--backoff", 0])
    assert (ran.code, len(ran.summary["attempts"])) == (0, 2)
    assert [file["path"].rpartition("/")[2] for file in ran.summary["attempts"][0]["saved"]] == ["9.pt"]


def test_one_training_after_the_other_is_no_hang(tmp_path):
    """A script that trains its folds in processes of their own: the second one's steps are signs of life."""
    fold = training(tmp_path, "def after(step):\n    time.sleep(0.25)", name="fold.py")
    (tmp_path / "folds.py").write_text(
        f"import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, {str(fold)!r}], check=True)\n"
    )
    ran = holdfast_run(tmp_path, PYTHON, "folds.py", options=["--hang-after", "2"], env={"STEPS": "30"})
    assert ran.code == 0, ran.stderr
    assert len(ran.of(events.ProbeAttached)) == 2
    assert "step-hang" not in ran.rules


def test_the_supervisor_is_small(tmp_path):
    """The training owns the memory: the supervisor itself stays under 60 MB."""
    part = "import psutil\nprint(psutil.Process(os.getppid()).memory_info().rss, flush=True)"
    ran = holdfast_run(
        tmp_path,
        PYTHON,
        training(
            tmp_path,
            part + "\ndef after(step):\n    if step == 30: print(psutil.Process(os.getppid()).memory_info().rss)",
        ),
    )
    assert max(int(line) for line in ran.stdout.split() if line.isdigit()) < 60e6
