"""Mistakes and odd trainings: a clear sentence with the next step, and nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from running import HOLDFAST, environment, holdfast, holdfast_run, training

from holdfast.schema import events

PYTHON = sys.executable


def test_command_not_found(tmp_path):
    ran = holdfast(tmp_path, "run", "--", "pyhton", "train.py")
    assert ran.code == 2
    assert "`pyhton` was not found" in ran.stderr
    assert "Next:" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list((tmp_path / ".holdfast" / "runs").iterdir()) == []


def test_script_without_python(tmp_path):
    training(tmp_path)
    ran = holdfast(tmp_path, "run", "--", "train.py")
    assert (ran.code, "holdfast run -- python train.py" in ran.stderr) == (2, True)


def test_no_command_at_all(tmp_path):
    ran = holdfast(tmp_path, "run")
    assert ran.code == 2
    assert "Traceback" not in ran.stderr


def test_errors_speak_json_too(tmp_path):
    ran = holdfast(tmp_path, "status", "nothing", "--json")
    told = json.loads(ran.stdout)
    assert (ran.code, told["kind"], told["exit_status"]) == (2, "UnknownRun", 2)
    assert told["next"]


def test_unknown_run(tmp_path):
    ran = holdfast(tmp_path, "status", "nothing")
    assert (ran.code, "no run named 'nothing'" in ran.stderr) == (2, True)


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    ran = holdfast(tmp_path, "run", "--dir", tmp_path / "file" / "run", "--", PYTHON, "-c", "pass")
    assert (ran.code, "cannot be created" in ran.stderr, "--dir" in ran.stderr) == (2, True, True)


def test_on_event_that_does_not_exist(tmp_path):
    ran = holdfast(tmp_path, "run", "--on-event", "no-such-program", "--", PYTHON, "-c", "pass")
    assert (ran.code, "no program" in ran.stderr) == (2, True)


def test_torn_journal_is_still_told(tmp_path):
    """The last line cut in half, garbage in the middle: status and resume still work with what is there."""
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path))
    lines = ran.run.journal.read_bytes().splitlines(keepends=True)
    ran.run.journal.write_bytes(b"".join(lines[:2]) + b"\x00\xffgarbage\n" + lines[2][: len(lines[2]) // 2])
    told = holdfast(tmp_path, "status", "run")
    assert told.code == 0, told.stderr
    assert "Holdfast was killed" in told.stdout
    again = holdfast(tmp_path, "resume", "run")
    assert again.code == 0, again.stderr
    assert again.summary["attempts"][-1]["last_step"] == 30


def test_script_without_torch(tmp_path):
    """It is supervised all the same, and the verdict says what is missing."""
    ran = holdfast_run(tmp_path, PYTHON, "-c", "print('hello')")
    assert (ran.code, ran.stdout, ran.summary["verdict"]) == (0, "hello\n", "unproven")
    assert "never imported torch" in ran.summary["reason"]
    assert ran.rules == {"probe-absent"}


def test_isolated_interpreter_is_supervised_and_says_what_it_cannot_see(tmp_path):
    """`python -I` ignores the probe's path: exit and output are seen, steps are not, and it says why."""
    ran = holdfast_run(tmp_path, PYTHON, "-I", training(tmp_path))
    assert (ran.code, ran.stdout, ran.summary["verdict"]) == (0, "done\n", "unproven")
    finding = next(f for f in ran.summary["findings"] if f["rule"] == "probe-absent")
    assert "-I" in finding["message"]
    assert ran.summary["coverage"]["steps"].startswith("not seen")


def test_own_sitecustomize_still_runs(tmp_path):
    """A folder of the user's on PYTHONPATH with a sitecustomize of its own: both work."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.MINE = 'my own'\n")
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, "print(MINE)"), env={"PYTHONPATH": str(tmp_path / "site")})
    assert "my own" in ran.stdout
    assert ran.summary["attempts"][0]["last_step"] == 30


def test_script_that_clears_the_path_is_told_about(tmp_path):
    """A wrapper that replaces PYTHONPATH shuts the probe out: that is said, not guessed around."""
    script = training(tmp_path)
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f"#!/bin/sh\nPYTHONPATH=/nowhere exec {PYTHON} {script}\n")
    ran = holdfast_run(tmp_path, "sh", wrapper)
    assert (ran.code, ran.summary["verdict"]) == (0, "unproven")
    assert "probe-absent" in ran.rules


def test_script_that_spawns_subprocesses(tmp_path):
    """Helpers that are Python, even with torch, do not disturb the count."""
    part = "import subprocess\nsubprocess.run([sys.executable, '-c', 'import torch; torch.zeros(3)'], check=True)\nsubprocess.run([sys.executable, '-c', 'pass'], check=True)"
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part))
    assert (ran.code, ran.summary["attempts"][0]["last_step"]) == (0, 30)
    assert len(ran.of(events.ProbeAttached)) == 1
    assert len(ran.of(events.Interpreter)) == 3


def test_os_exit_loses_nothing(tmp_path):
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, "def after(step):\n    if step == 30: os._exit(0)"))
    assert (ran.code, ran.summary["attempts"][0]["last_step"]) == (0, 30)
    assert [event.step for event in ran.of(events.Step)] == list(range(1, 31))


def test_hundred_megabytes_of_output(tmp_path):
    """All of it passes, unchanged; the record of it stays bounded; the supervisor stays small."""
    script = tmp_path / "loud.py"
    script.write_text(
        "import sys\nline = b'x' * 999 + b'\\n'\nfor _ in range(100_000): sys.stdout.buffer.write(line)\n"
    )
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [str(Path(PYTHON).with_name("holdfast")), "run", "--dir", "run", "--", PYTHON, script],
            cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, env=environment(), check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").stat().st_size == 100_000_000
    logs = sum(path.stat().st_size for path in (tmp_path / "run" / "attempts" / "1").iterdir())
    assert logs <= 70_000_000


def test_secrets_are_not_recorded(tmp_path):
    """Neither from the environment nor from arguments; and a resume asks for the command again."""
    secret = "hunter2-very-secret"
    ran = holdfast_run(
        tmp_path,
        PYTHON,
        "-c",
        "import sys; sys.exit(3)",
        f"--api-key={secret}",
        "--password",
        secret,
        env={"WANDB_API_KEY": secret},
    )
    recorded = b"".join(path.read_bytes() for path in ran.folder.rglob("*") if path.is_file())
    assert secret.encode() not in recorded
    again = holdfast(tmp_path, "resume", "run")
    assert (again.code, "specify it again" in again.stderr) == (2, True)


def test_secrets_are_taken_out_of_what_the_command_says(tmp_path):
    """argparse quotes the arguments that it does not know, and that becomes the finding: without the secret."""
    secret = "hunter2-very-secret"
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    ran = holdfast_run(tmp_path, PYTHON, "train.py", f"--api-key={secret}")
    told = ran.run.journal.read_text() + ran.run.summary.read_text() + ran.run.plan.read_text()
    assert "unrecognized arguments" in told
    assert secret not in told


def test_argument_that_is_no_text(tmp_path):
    """Bytes that are not UTF-8 reach the command as they are, and the record without an error."""
    name = os.fsdecode(b"caf\xe9")
    ran = holdfast_run(tmp_path, PYTHON, "-c", "import os, sys; print(os.fsencode(sys.argv[1]))", name)
    assert (ran.code, ran.stdout) == (0, "b'caf\\xe9'\n")


def test_reader_that_is_gone_does_not_change_the_status(tmp_path):
    """`holdfast run ... 2>&1 | true`: the verdict decides the status, not who is still there to read it."""
    script = training(tmp_path)
    line = f"{shlex.join([str(HOLDFAST), 'run', '--dir', 'run', '--', PYTHON, str(script)])} 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(), check=False, timeout=120)
    assert done.returncode == 0


def test_resume_of_a_run_that_only_lacks_its_verdict(tmp_path):
    """The supervisor was killed right after the training had finished: it is judged, not trained again."""
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path))
    lines = ran.run.journal.read_bytes().splitlines(keepends=True)
    ran.run.journal.write_bytes(
        b"".join(line for line in lines if b"run-ended" not in line and b"decision-made" not in line)
    )
    again = holdfast(tmp_path, "resume", "run")
    assert (again.code, again.stdout) == (0, "")
    assert (len(again.summary["attempts"]), again.summary["verdict"]) == (1, "learned")


def test_resume_of_a_run_that_has_finished_leaves_its_record_as_it_is(tmp_path):
    """Also where it learned nothing: it is said in words, and neither the journal nor the time that it took grows."""
    part = "def forward(step): return nn.functional.mse_loss(model(x), y) * 0.0"
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=["--on-finding", "warn"])
    assert ran.summary["verdict"] == "not-learned"
    before = ran.run.journal.read_bytes(), ran.run.summary.read_bytes()
    for _ in range(2):
        again = holdfast(tmp_path, "resume", "run")
        assert again.code == 2
        assert "The run run has finished (not-learned): there is nothing to resume." in again.stderr
    assert (ran.run.journal.read_bytes(), ran.run.summary.read_bytes()) == before


def test_resume_takes_the_newest_run_that_can_be_resumed(tmp_path):
    """Not one that has finished, and not one that still runs; and it says which."""
    assert "There is no run under" in holdfast(tmp_path, "resume").stderr
    fails = training(tmp_path, "if FIRST:\n    sys.exit(3)", name="fails.py")
    holdfast(tmp_path, "run", "--max-attempts", "1", "--", PYTHON, fails)
    holdfast(tmp_path, "run", "--", PYTHON, training(tmp_path, name="works.py"))
    again = holdfast(tmp_path, "resume")
    assert again.code == 0, again.stderr
    assert "resuming fails-1, the newest run that can be resumed" in again.stderr
    over = holdfast(tmp_path, "resume")
    assert (over.code, "There is no run under" in over.stderr) == (2, True)


def test_status_offers_a_resume_where_the_panel_does(tmp_path):
    """An exception before the first step would only come again."""
    raises = training(tmp_path, "raise ValueError('no such data')", name="raises.py")
    ran = holdfast(tmp_path, "run", "--", PYTHON, raises)
    assert "a restart would fail the same way" in " ".join(ran.stderr.replace("│", " ").split())
    assert "holdfast resume" not in holdfast(tmp_path, "status", "raises").stdout
    dies = training(tmp_path, "def after(step):\n    if step == 4: die()", name="dies.py")
    holdfast(tmp_path, "run", "--max-attempts", "1", "--", PYTHON, dies)
    assert (
        "next: start the run again (nothing was saved): holdfast resume dies-1"
        in holdfast(tmp_path, "status", "dies").stdout
    )


def test_a_file_that_is_saved_at_the_end_is_no_checkpoint_to_go_on_from(tmp_path):
    """The hint is for trainings that save as they go; it names the way that needs no checkpoint too."""
    once = "def after(step):\n    if step == STEPS:\n        torch.save(model.state_dict(), 'm.pt'); time.sleep(1)"
    assert "how to resume" not in holdfast_run(tmp_path, PYTHON, training(tmp_path, once)).stderr
    (tmp_path / "again").mkdir()
    often = "def after(step):\n    if step % 5 == 0:\n        torch.save(model.state_dict(), 'm.pt'); time.sleep(0.3)"
    said = holdfast_run(tmp_path / "again", PYTHON, training(tmp_path / "again", often)).stderr
    assert "m.pt, but Holdfast does not know how to resume from it after a crash" in said
    assert "holdfast.guard" in said


def test_resume_can_be_told_how_to_go_on(tmp_path):
    """Whoever did not give --checkpoint at the start can give it now."""
    part = (
        "torch.save({}, 'state.pt')\nprint(sys.argv[1:], flush=True)\ndef after(step):\n    if step == 4: sys.exit(3)"
    )
    holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=["--max-attempts", 1])
    again = holdfast(tmp_path, "resume", "run", "--checkpoint", "state.pt", "--resume-with", "--from {checkpoint}")
    assert f"['--from', '{(tmp_path / 'state.pt').resolve()}']" in again.stdout


def test_wrong_placeholder_is_refused_at_once(tmp_path):
    ran = holdfast(
        tmp_path, "run", "--checkpoint", "*.pt", "--resume-with", "--resume {ckpt}", "--", PYTHON, "-c", "pass"
    )
    assert (ran.code, "{checkpoint}" in ran.stderr) == (2, True)


def test_escape_sequences_in_last_words_are_not_passed_on_by_the_panel(tmp_path):
    """An exception's text could move the cursor or set the title; in what Holdfast itself prints it cannot."""
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('\\x1b]0;owned\\x07\\x1b[31mred\\x1b[2J')\n")
    ran = holdfast_run(tmp_path, PYTHON, "train.py")
    mine = "\n".join(line for line in ran.stderr.splitlines() if line.startswith(("holdfast:", "│")))
    assert "ValueError" in mine
    assert "\x1b" not in mine


@pytest.fixture(scope="module")
def other_venv(tmp_path_factory):
    """A virtual environment that has torch and what torch needs, and nothing of Holdfast's."""
    venv = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(venv)], check=True)
    theirs = Path(sysconfig.get_path("purelib"))
    ours = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    for name in (
        "torch",
        "torchgen",
        "functorch",
        "numpy",
        "numpy.libs",
        "sympy",
        "mpmath",
        "networkx",
        "jinja2",
        "markupsafe",
        "fsspec",
        "filelock",
        "typing_extensions.py",
    ):
        if (theirs / name).exists():
            (ours / name).symlink_to(theirs / name)
    return venv / "bin" / "python"


def test_child_in_another_environment(tmp_path, other_venv):
    """The training's own interpreter has torch and nothing of ours; every step is seen all the same."""
    part = (
        "import importlib.util\nprint([name for name in ('msgspec', 'psutil', 'rich') if importlib.util.find_spec(name)])\n"
        "import holdfast; print(holdfast.guard.__module__, hasattr(holdfast, '__version__'))"
    )
    ran = holdfast_run(tmp_path, other_venv, training(tmp_path, part))
    assert ran.code == 0, ran.stderr
    assert ran.stdout.splitlines()[:2] == ["[]", "holdfast_probe.guard False"]  # the probe's own, not an installed one
    assert (ran.summary["attempts"][0]["last_step"], ran.summary["verdict"]) == (30, "learned")
    assert ran.of(events.ProbeAttached)[0].executable == str(other_venv)
