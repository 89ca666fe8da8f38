"""Other interpreters: they get the user's own PYTHONPATH, and our programs in them import nothing from the working folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import holdfast_run

from holdfast.frameworks.ultralytics import command as ultralytics_command
from holdfast.frameworks.ultralytics import install, short_run
from holdfast.machine import this_machine
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.interpreter import PythonClient
from holdfast.preflight.dry_run import environment as dry_run_environment
from holdfast.preflight.images import readers
from holdfast.process.python_command import program, python_path
from holdfast.schema.plan import Plan
from holdfast.simulator import runner as lab_running
from holdfast.storage.folder import create
from holdfast.supervisor import cpu_validation, verify_checkpoints
from holdfast.supervisor.child_env import PROBE_FOLDER, environment

SPELLINGS = [None, "", ":", "lib:", ":lib", "lib::other", "::"]
MODULE = "holdfast_probe.frameworks.ultralytics.validate_on_cpu"
TELLS = "import json, sys\nprint(json.dumps(sys.path))\n"


def sys_path(folder: Path, variables: dict[str, str]) -> list[str]:
    """That of a script in a folder of its own, so that the working folder is there only where PYTHONPATH says so."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts/tells.py").write_text(TELLS)
    done = subprocess.run(
        [sys.executable, "scripts/tells.py"], cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def variables_with(given: str | None, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **({} if given is None else {"PYTHONPATH": given}), **more}


@pytest.mark.parametrize("given", SPELLINGS)
def test_a_training_has_the_path_that_it_has_bare(tmp_path, given):
    """An empty entry means the working folder, wherever it stands; no PYTHONPATH means no entry. In the run, in the dry run
    and where the interpreter is asked.
    """
    user = variables_with(given)
    bare = sys_path(tmp_path, user)
    plan = Plan(command=["python"], cwd=str(tmp_path))
    run = create([], root=tmp_path, folder=tmp_path / "run")
    supervised = environment(run, plan, 1, None, mtbf_s=None, base=user)
    context = CheckContext(cwd=tmp_path, machine=this_machine(), environment=user)
    dry_run_result = dry_run_environment.build_environment(context, tmp_path, tmp_path, {}, {})
    for variables in (supervised, dry_run_result):
        quiet = {name: value for name, value in variables.items() if not name.startswith("HOLDFAST_")}
        assert sys_path(tmp_path, quiet) == bare
        assert variables["PYTHONPATH"].startswith(str(PROBE_FOLDER))
    asked = PythonClient([sys.executable], tmp_path, user)._environment
    assert sys_path(tmp_path, {name: value for name, value in asked.items() if name != "PYTHONSAFEPATH"}) == bare


@pytest.mark.parametrize("given", SPELLINGS)
def test_a_run_inside_of_a_run_has_the_same_path(given):
    """The outer supervisor's entry goes, and nothing else."""
    user = {} if given is None else {"PYTHONPATH": given}
    outer = {**python_path(user, "/outer"), "HOLDFAST_PROBE_PATH": "/outer"}
    assert python_path(outer, "/inner") == python_path(user, "/inner")
    assert python_path(outer) == {name: value for name, value in user.items() if value}


def test_a_module_beside_an_empty_entry_is_found(tmp_path):
    """`export PYTHONPATH=/lib:$PYTHONPATH` leaves an empty entry behind, and a training that relies on it starts."""
    (tmp_path / "mine.py").write_text("ANSWER = 42\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.py").write_text("import mine\nprint('found', mine.ANSWER)\n")
    ran = holdfast_run(tmp_path, sys.executable, "scripts/train.py", env={"PYTHONPATH": "/nowhere:"})
    assert "found 42" in ran.stdout + ran.stderr


# --- our own programs in a folder of somebody else's -------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A folder with a module that stands for every one of Python's that a program may import."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in (
        "json",
        "os",
        "io",
        "pickle",
        "hashlib",
        "warnings",
        "importlib",
        "runpy",
        "pathlib",
        "holdfast",
        "torch",
    ):
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(7)\n"
        )
    monkeypatch.chdir(folder)
    return folder


def pythons() -> list[str]:
    """This one, and others of this machine: before 3.11 PYTHONSAFEPATH is not known."""
    found = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    old = [str(path) for path in found if path.parents[1].name.startswith(("3.9", "3.10"))]
    return [sys.executable, *old]


@pytest.mark.parametrize("python", pythons())
def test_programs_import_nothing_from_the_working_folder(planted, python):
    """As `python -c` would: under each interpreter, without the variable that later ones know."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    text = "import json, os, io, pickle, hashlib, warnings, pathlib, sys\nprint(json.dumps(sys.argv[1:]))\n"
    bare = subprocess.run([python, "-c", text], env=variables, capture_output=True, check=False)
    assert bare.returncode == 7, "without us it does"
    (planted.parent / "ran").unlink()
    done = subprocess.run(
        program([python], text, "a", "b c"), env=variables, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["a", "b c"]
    assert not (planted.parent / "ran").exists()


def test_every_program_of_ours_is_started_that_way(planted, monkeypatch):
    """Each place that starts one, as far as its command: none imports from the folder that it is started in."""
    commands: list[list[str]] = []

    def started(command, **_):
        commands.append(list(command))
        raise OSError(2, "not now")

    monkeypatch.setattr(subprocess, "Popen", started)
    (planted / "program.txt").write_text("print('hello')")
    PythonClient([sys.executable], planted, os.environ)(planted / "program.txt", [], "", 5.0)
    verify_checkpoints.Reader()._start(sys.executable)
    with cpu_validation.Validation(sys.executable, MODULE, {}, str(planted), "the test asks"):
        pass
    install.find_ultralytics([sys.executable])
    commands.append(readers.Readers(sys.executable, readers.Task(1, None), [], count=1).command())
    commands.append(program([sys.executable], short_run.PROGRAM))
    commands.append(program([sys.executable], lab_running.SUPERVISE))
    commands.append([sys.executable, "-c", ultralytics_command.ENTRY])
    monkeypatch.undo()
    monkeypatch.chdir(planted)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    assert len(commands) == 9, "with the watchdog of the one that is asked"
    for command in commands:
        subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, cwd=planted, timeout=60, check=False
        )
        assert not (planted.parent / "ran").exists(), command


def test_no_source_starts_python_with_text_or_a_module_by_itself():
    """A new place that does would import from the working folder: it has to go through `program`."""
    source = Path(cpu_validation.__file__).parents[1]
    allowed = {
        "process/python_command.py",
        "frameworks/ultralytics/command.py",
        "simulator/supervise.py",
        "machine/linux.py",
    }
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if ('"-c",' in line or '"-m", "holdfast' in line) and '"-I",' not in line
    }
    assert found <= allowed, "its command begins with the working folder on its path"
