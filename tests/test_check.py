"""`holdfast check`: which Python is asked and how, what a check may do to the others (nothing), what is shown, how it exits."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from rich.console import Console
from running import HOLDFAST, environment

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks import all_checks, runner
from holdfast.preflight.checks.check import Answer, Check, NotChecked, finding
from holdfast.preflight.checks.context import build_context, parse_settings
from holdfast.preflight.checks.interpreter import PythonClient, Reply
from holdfast.preflight.checks.runner import Report, run_all, select_checks
from holdfast.process.python_discovery import find_imports, find_python
from holdfast.render.checks import ChecksProgress, as_builtins, table
from holdfast.schema.errors import CommandNotRunnable, UsageError
from holdfast.schema.plan import Plan, Stage


def made(run, name="a-check", **more):
    return Check(id=name, kind="environment", run=run, page="", **more)


def passes(context):
    return Answer("all is well")


def results_of(*checks, context=None, **more):
    return list(run_all(checks, context or linux(), **more))


# --- a check and its manners ------------------------------------------------------------------------------------------


def test_check_that_raises_is_not_checked_and_the_next_one_runs():
    def broken(context):
        raise ZeroDivisionError("a bug")

    first, second = results_of(made(broken), made(passes))
    assert (first.status, second.status) == ("not checked", "passed")
    assert "ZeroDivisionError: a bug" in first.message


def test_check_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(runner, "GRACE_S", 0.0)
    let_go = threading.Event()
    first, second = results_of(made(lambda _: let_go.wait(60), seconds=0.05), made(passes))
    let_go.set()
    assert first.status == "not checked"
    assert "did not finish" in first.message
    assert second.status == "passed"


def test_check_knows_how_long_it_has():
    """A check's own bound, or what is left of all the time, whichever is less."""
    left = []

    def looks(context):
        left.append(context.seconds_left)
        return Answer("")

    now = [100.0]
    results_of(made(looks, seconds=30.0), made(looks, seconds=500.0), seconds=60.0, clock=lambda: now[0])
    assert left == [30.0, 60.0]


def test_no_check_begins_when_the_time_is_over():
    now = [0.0]

    def takes_all(context):
        now[0] += 60.0
        return Answer("")

    first, second = results_of(made(takes_all), made(passes), seconds=60.0, clock=lambda: now[0])
    assert (first.status, second.status) == ("passed", "not checked")
    assert "--seconds" in second.message


@pytest.mark.parametrize(
    ("need", "context", "message"),
    [
        (
            "torch",
            linux(facts={"torch": None, "no_torch": "torch is not installed in /p"}),
            "torch is not installed in /p",
        ),
        ("interpreter", replace(linux(), interpreter=None, no_interpreter="it is gone"), "it is gone"),
        ("data", linux(), "--data"),
        ("command", linux(), "COMMAND"),
        ("plan", linux(), "PLAN.toml"),
    ],
)
def test_check_is_not_run_without_what_it_needs(need, context, message):
    def never(context):
        raise AssertionError

    (result,) = results_of(made(never, needs=(need,)), context=context)
    assert result.status == "not checked"
    assert message in result.message


def test_gravest_finding_decides_and_stands_first():
    def finds(context):
        return Answer("", tuple(finding(severity, severity) for severity in ("note", "fatal", "warn")))

    def notes(context):
        return Answer("", (finding("note", "by the way"),))

    grave, light = results_of(made(finds), made(notes))
    assert [found.severity for found in grave.findings] == ["fatal", "warn", "note"]
    assert (grave.status, light.status) == ("fatal", "passed")
    assert Report(linux(), (grave, light), 0.0).exit_status == 3
    assert Report(linux(), (light,), 0.0).exit_status == 0


def test_not_checked_is_no_reason_to_stop():
    def cannot(context):
        raise NotChecked("nothing to look at")

    results = results_of(made(cannot))
    assert results[0].message == "nothing to look at"
    assert Report(linux(), tuple(results), 0.0).exit_status == 0


def test_checks_are_chosen_by_id_and_kind():
    assert [check.id for check in select_checks(["disk-enough", "swap-in-use"], ["swap-in-use"])] == ["disk-enough"]
    assert {check.kind for check in select_checks(["environment"])} == {"environment"}
    assert not {check.kind for check in select_checks([], ["environment"])} & {"environment"}
    with pytest.raises(UsageError) as caught:
        select_checks(["disk-enogh"])
    assert "disk-enough" in caught.value.next_step


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.id)
def test_check_is_whole(check):
    """A check has a kebab-case id that matches its file, a page, and findings under its own name."""
    assert check.run.__module__.rpartition(".")[2].replace("_", "-") == check.id
    assert len(check.page.split()) > 30


# --- asking the user's interpreter ------------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path):
    asker = PythonClient([sys.executable], tmp_path, os.environ)

    def ask(text, *arguments, given="", seconds=60.0, on_line=None):
        program = tmp_path / "program.py"
        program.write_text(text)
        return asker(program, list(arguments), given, seconds, on_line)

    yield ask
    asker.close()


def test_lines_arguments_and_input_go_through(asked):
    """What is no JSON object is somebody else's printing, and is left out."""
    heard = []
    reply = asked(
        "import json, sys\n"
        "print('a banner')\n"
        "print('{not json')\n"
        "print(json.dumps({'arguments': sys.argv[1:], 'given': sys.stdin.read()}))\n"
        "print('warning', file=sys.stderr)\n",
        "one",
        "two",
        given="many\npaths",
        on_line=heard.append,
    )
    assert reply.lines == ({"arguments": ["one", "two"], "given": "many\npaths"},)
    assert heard == list(reply.lines)
    assert (reply.code, reply.failure, reply.last_line) == (0, None, "warning")


def test_what_was_said_before_a_crash_is_known(asked):
    reply = asked("import os\nprint('{\"a\": 1}', flush=True)\nos.abort()\n")
    assert reply.lines == ({"a": 1},)
    assert reply.failure == "it was killed by SIGABRT"


def test_program_that_does_not_end_is_ended(asked):
    reply = asked("import time\ntime.sleep(600)\n", seconds=0.2)
    assert reply.code is None
    assert reply.failure == "it did not finish in time"


def test_whoever_closes_ends_all_that_was_started(tmp_path):
    """A child of the program's own would keep the pipe open: both are ended."""
    asker = PythonClient([sys.executable], tmp_path, os.environ)
    program = tmp_path / "program.py"
    program.write_text(
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps({'child': child.pid}), flush=True)\n"
        "time.sleep(600)\n"
    )
    reply = asker(program, [], "", 300.0, lambda _: asker.close())
    assert reply.failure == "it was killed by SIGKILL"
    for _ in range(1000):
        if _is_gone(reply.lines[0]["child"]):
            break
        time.sleep(0.01)
    assert _is_gone(reply.lines[0]["child"])


def _is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_interpreter_that_cannot_be_started_is_said(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("")
    reply = PythonClient(["/nowhere/python"], tmp_path, os.environ)(program, [], "", 5.0)
    assert reply.code == 127
    assert "/nowhere/python" in reply.last_line


def test_program_sees_the_users_environment_and_none_of_ours(tmp_path):
    """A check inside a supervised run must not wake the probe; files of the folder do not stand for packages."""
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os\n"
        "ours = [name for name in os.environ if name.startswith('HOLDFAST_')]\n"
        "print(json.dumps({'ours': ours, 'path': os.environ.get('PYTHONPATH'), 'mine': os.environ['MINE']}))\n"
    )
    outer = {
        **os.environ,
        "MINE": "yes",
        "HOLDFAST_ATTEMPT_DIR": str(tmp_path),
        "HOLDFAST_PROBE_PATH": "/child",
        "PYTHONPATH": os.pathsep.join(["/child", "/my/modules"]),
    }
    reply = PythonClient([sys.executable], tmp_path, outer)(program, [], "", 30.0)
    assert reply.lines == ({"ours": [], "path": "/my/modules", "mine": "yes"},)


# --- which interpreter, which settings --------------------------------------------------------------------------------


def executable(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (["python", "train.py"], ["python"]),
        (["/v/bin/python3.11", "-u", "-I", "-m", "train"], ["/v/bin/python3.11", "-u", "-I"]),
        (["env", "A=1", "python3", "train.py"], ["env", "A=1", "python3"]),
        (["uv", "run", "python", "train.py"], ["uv", "run", "python"]),
        (["nice", "-n", "5", "python", "a.py"], ["nice", "-n", "5", "python"]),
        (["ssh", "host", "python", "train.py"], None),
        ([], None),
    ],
)
def test_python_of_a_command(command, python, tmp_path):
    """Programs that run their command in this place are kept before it; others may run it anywhere."""
    assert find_python(command, tmp_path, {"PATH": str(tmp_path)}) == python


def test_python_behind_a_script(tmp_path):
    """As pip writes `yolo` and `torchrun`: the first line names it, or the second where the path is long or has a space."""
    search = {"PATH": str(tmp_path)}
    assert find_python([str(executable(tmp_path / "alone", "#!/bin/sh\n"))], tmp_path, search) is None
    python = executable(tmp_path / "python3", "")
    executable(tmp_path / "yolo", f"#!{python}\nimport ultralytics\n")
    executable(tmp_path / "torchrun", f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n")
    executable(tmp_path / "tool", "#!/usr/bin/env python3\n")
    executable(tmp_path / "shim", "#!/usr/bin/env bash\n")
    for program in ("yolo", "torchrun", "tool", "shim"):
        assert find_python([program, "train"], tmp_path, search) == [str(python)], program


def test_script_tells_what_it_imports(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch.nn as nn\ndef f():\n    from faiss.contrib import x\nfrom . import mine\n")
    assert find_imports(script) == {"torch", "faiss"}
    script.write_text("print 'python 2'")
    assert find_imports(script) == set()
    assert find_imports(tmp_path / "none.py") == set()


def test_settings_of_a_command():
    words = ["yolo", "train", "data=d.yaml", "imgsz=320", "cache=True", "lr0=0.1", "device=None"]
    assert parse_settings(words) == {"data": "d.yaml", "imgsz": 320, "cache": True, "device": None}
    words = ["python", "train.py", "--img", "640", "--batch-size=8", "--weights", "y.pt", "--device", "0", "--data"]
    assert parse_settings(words) == {"imgsz": 640, "batch": 8, "model": "y.pt", "device": 0}


def test_ground_of_a_plan(tmp_path):
    """The first stage's settings over the plan's, its variables over the environment, its interpreter."""
    python = executable(tmp_path / "python", f'#!/bin/sh\necho \'{{"fact": "python", "executable": "{tmp_path}"}}\'\n')
    plan = Plan(
        cwd=str(tmp_path),
        trainer="ultralytics",
        python=str(python),
        settings={"model": "yolo11n.yaml", "data": "d.yaml", "imgsz": 640, "device": [0, 1]},
        stages=[Stage(settings={"imgsz": 320})],
        environment={"A": "plan"},
    )
    context, _ = build_context(plan=plan, environment={"A": "mine", "PATH": "/usr/bin:/bin"})
    assert context.settings["imgsz"] == 320
    assert (context.data, context.device) == (tmp_path / "d.yaml", "0,1")
    assert context.environment["A"] == "plan"
    assert context.interpreter is not None
    assert context.interpreter.executable == str(tmp_path)
    assert context.interpreter.torch is None
    assert not context.is_guessed


def test_python_of_a_shell_script_is_a_guess(tmp_path, monkeypatch):
    """What `python` means here is asked, and nothing that it lacks is held against the training."""
    monkeypatch.chdir(tmp_path)
    executable(tmp_path / "python", '#!/bin/sh\necho \'{"fact": "python", "executable": "guess"}\'\n')
    context, _ = build_context(command=["sh", "train.sh"], environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert context.is_guessed
    assert context.interpreter.executable == "guess"


@pytest.mark.parametrize("command", [["pyton", "train.py"], [sys.executable, "-u", "missing.py"]])
def test_command_that_cannot_start_is_no_ground(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandNotRunnable):
        build_context(command=command)


# --- what is shown ----------------------------------------------------------------------------------------------------


def a_report():
    def bad(context):
        remedies = ["install torch 2.3 or newer", "train on the CPU"]
        return Answer("", (finding("fatal", "losses come out as \x1b[31mexactly 0", remedies=remedies),))

    needy = [made(passes, name, needs=("data",)) for name in ("first", "second")]
    return Report(mac(), tuple(results_of(made(bad, "bad"), made(passes, "good"), *needy)), 1.5)


@pytest.mark.parametrize("width", [80, 140])
def test_table_says_what_to_do(width):
    """Escapes of other programs are taken out; what was not checked for one reason is said once."""
    console = Console(file=io.StringIO(), width=width)
    console.print(table(a_report(), width))
    text = console.file.getvalue()
    plain = " ".join(text.replace("→", " ").split())
    assert "install torch 2.3 or newer; train" in plain
    assert "all is well" in plain
    assert "\x1b[31m" not in text
    assert plain.count("--data") == 1


def test_json_tells_the_same():
    told = as_builtins(a_report())
    assert told["exit_status"] == 3
    assert told["counts"] == {"passed": 1, "warn": 0, "fatal": 1, "not checked": 2}
    assert told["checks"][0]["findings"][0]["remedies"] == ["install torch 2.3 or newer", "train on the CPU"]
    assert told["python"]["macos"] == "26.4"
    assert json.loads(json.dumps(told)) == told


def test_progress_without_a_terminal_is_plain_lines(capsys):
    """What is quick says nothing; what lasts is named, and where it counts, told of every ten percent."""
    with ChecksProgress() as progress:
        progress.on_query()
        for slow in (False, True):
            progress.on_check_start(made(passes, "images"))
            if slow:
                progress._announce("images")
            for n in range(1, 1001):
                progress.update(n, 1000, "files")
            progress.on_check_end(None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["holdfast check: images ...", "holdfast check: images: 100 of 1,000 files"]
    assert len(lines) == 11


# --- the command ------------------------------------------------------------------------------------------------------


def run_check(folder, *words, env=None):
    return subprocess.run(
        [str(HOLDFAST), "check", *map(str, words)],
        cwd=folder, env=environment(**(env or {})), timeout=120, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_check_of_a_real_command(tmp_path):
    """The command's own Python is asked, with its torch; everything of the environment is looked at."""
    (tmp_path / "train.py").write_text("import torch\n")
    done = run_check(tmp_path, "--skip", "data", "--device", "cpu", "--json", "--", sys.executable, "-u", "train.py")
    told = json.loads(done.stdout)
    status = {check["id"]: check["status"] for check in told["checks"]}
    assert told["python"]["torch"]["devices"][-1] == "cpu"
    assert told["python"]["openmp"]["torch"]
    assert status["device-usable"] == "passed"
    assert status["versions-known-bad"] == "passed"
    assert status["plan-possible"] == "not checked"
    assert done.returncode == (3 if "fatal" in status.values() else 0)


FIRST_REPORT = (
    {
        "fact": "python", "executable": "/Users/me/venv/bin/python", "python": "3.11.8", "macos": "14.4.1", "machine": "arm64",
        "platform": "macOS-14.4.1-arm64-arm-64bit", "chip": "Apple M3",
        "packages": {"torch": "2.2.1", "torchvision": "0.17.1", "ultralytics": "8.1.34", "numpy": "1.26.4"},
    },
    {"fact": "trying", "what": "torch"},
    {"fact": "torch", "version": "2.2.1", "mps_built": True, "devices": ["mps", "cpu"]},
    {"fact": "torchvision", "version": "0.17.1", "error": None},
    {"fact": "openmp", "after": "torch", "files": ["/torch/lib/libomp.dylib"]},
    {"fact": "done"},
)  # fmt: skip
"""What the interpreter of the first field report would have said of itself."""


def test_first_field_report_is_told_to_stop(tmp_path):
    """torch 2.2 on macOS 14.4: hours with every loss 0, known in seconds, with what to install. Exit status 3."""
    lines = "\n".join(json.dumps(line) for line in FIRST_REPORT)
    executable(tmp_path / "python", f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    (tmp_path / "train.py").write_text("")
    words = ("--only", "versions-known-bad", "--", "./python", "train.py", "device=mps")
    done = run_check(tmp_path, *words, env={"COLUMNS": "200"})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "losses are exactly 0" in " ".join(done.stdout.split())
    assert "install torch 2.3 or newer" in done.stdout
    assert "Fix these before you start: versions-known-bad" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--only", "versions"), "versions-known-bad"),
        (("--", "pyton", "train.py"), "not on the PATH"),
        (("missing.toml",), "missing.toml"),
    ],
)
def test_wrong_words_say_what_is_right(words, message, tmp_path):
    done = run_check(tmp_path, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_said_of_a_program_that_ended_well():
    assert Reply().failure is None
    assert Reply(code=1, stderr="a\n\nb \n\n").last_line == "b"


RACES = """
import argparse
import torch
from holdfast.simulator import accelerator
from holdfast.simulator.accelerator.op_faults import CopyRaces

options = argparse.ArgumentParser()
options.add_argument("--device")
device = options.parse_args().device
accelerator.switch_on(CopyRaces())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(256, 8), batch_size=16)
for _ in range(100):
    for batch in loader:
        x = batch.to(device, non_blocking=True)
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_device_whose_copies_race_is_told_by_whole_steps(tmp_path):
    """Operator by operator everything is right, because looking waits for the device. The real program, all of its way."""
    (tmp_path / "train.py").write_text(RACES)
    words = ("--json", "--only", "device", "--", sys.executable, "train.py", "--device", "sim")
    done = run_check(tmp_path, *words)
    assert done.returncode == 3, done.stdout + done.stderr
    told = {one["id"]: one for one in json.loads(done.stdout)["checks"]}
    assert told["device-operators"]["status"] == "passed"
    assert told["device-steps-agree"]["status"] == "fatal"
    (found,) = told["device-steps-agree"]["findings"]
    assert "non_blocking" in " ".join(found["remedies"])
