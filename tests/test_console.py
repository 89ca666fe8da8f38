"""Nothing that Holdfast prints can act on a terminal, whatever files, names and arguments it quotes."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import HOLDFAST, environment

import holdfast as package
from holdfast.__main__ import _run
from holdfast.probe.holdfast_probe import heartbeat
from holdfast.render.console import console, print_json, print_line, say_error
from holdfast.schema import events
from holdfast.schema.plan import Plan
from holdfast.schema.verdicts import Change, Decision, Finding
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import JournalWriter
from holdfast.storage.plan_copy import write_plan

PYTHON = sys.executable
HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\u202ee\x08\x7ff\u2028g\u200b\ufeff\rh\ni\tj\x1b"
ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\udc80-\udcff]")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs a command in this process and gives its status and all that it printed, checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, words)])
        status = _run()
        said = capsys.readouterr()
        assert not ACTS.search(said.out), (words, said.out)
        assert not ACTS.search(said.err), (words, said.err)
        assert "Traceback" not in said.err
        return status, said.out + said.err

    return run


def hostile_run(folder: Path, *, over: bool) -> RunFolder:
    """A record in which every text that somebody else can have written is hostile."""
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    write_plan(run, Plan(cwd=str(folder), command=[PYTHON, "-c", "pass", HOSTILE], name=HOSTILE, keep_awake=False))
    journal = JournalWriter(run.journal)
    change = Change(setting=HOSTILE, before=HOSTILE, after=HOSTILE, why=HOSTILE, costs=HOSTILE)
    finding = Finding(rule=HOSTILE, severity="warn", message=HOSTILE, evidence=[HOSTILE], remedies=[HOSTILE])
    recorded = [
        events.RunStarted(at=1, schema=1, run=HOSTILE, command=[HOSTILE], cwd=HOSTILE, holdfast=HOSTILE, platform=HOSTILE,
                          python=HOSTILE, supervisor=1, environment={"OMP_NUM_THREADS": HOSTILE}),
        events.AttemptStarted(at=2, attempt=1, pid=1 << 22, command=[HOSTILE], changes=[change],
                              resume=events.Resume(how=HOSTILE, checkpoint=HOSTILE, why=HOSTILE)),
        events.OutputMatched(at=3, rule=HOSTILE, stream=HOSTILE, text=HOSTILE),
        events.SupervisorNote(at=3, what=HOSTILE, detail=HOSTILE),
        events.FindingMade(at=3, finding=finding),
        events.AttemptEnded(at=4, attempt=1, code=1, signal=HOSTILE, stopped_by="rule", rule=HOSTILE, planned=HOSTILE, last_lines=[HOSTILE],
                            evidence=[events.Evidence(HOSTILE, HOSTILE)]),
        events.CheckpointsBackedUp(at=5, attempt=1, files=[events.BackedUpFile(HOSTILE, HOSTILE, 1)], left_out=[HOSTILE]),
        events.DecisionMade(at=5, decision=Decision(action="stop", attempt=1, why=HOSTILE, cause=HOSTILE)),
    ]  # fmt: skip
    for event in recorded:
        journal.append(event)
    if over:
        journal.append(events.RunEnded(at=6, verdict=HOSTILE, reason=HOSTILE, exit_status=4))
    journal.close()
    heartbeat.create(str(run.heartbeat))
    heartbeat.settle(str(run.heartbeat))
    return run


@pytest.mark.parametrize("over", [True, False])
def test_hostile_record(over, tmp_path, command):
    """`status`, `report`, `diagnose`, and a folder whose name is hostile too."""
    run = hostile_run(tmp_path / HOSTILE, over=over)
    for words in (["status", run.path], ["status", run.path, "--json"], ["report", run.path], ["report", run.path, "--json"],
                  ["diagnose", run.path], ["diagnose", run.path, "--json"], ["diagnose", run.journal]):  # fmt: skip
        status, said = command(*words)
        assert said, words
        assert status in (0, 3), said


def test_hostile_stages(tmp_path, command):
    """Names, verdicts and gates of stages."""
    run = hostile_run(tmp_path / "run", over=False)
    hostile_run(run.stages / "1-a", over=True)
    journal = JournalWriter(run.journal)
    journal.append(
        events.StageStarted(at=7, stage=1, of=2, name=HOSTILE, folder="1-a", weights=HOSTILE, expects=HOSTILE)
    )
    journal.append(events.StageEnded(at=8, stage=1, name=HOSTILE, verdict=HOSTILE, reason=HOSTILE, metric=HOSTILE, reached=0.5,
                                     gate_message=HOSTILE, best=HOSTILE))  # fmt: skip
    journal.append(events.StageLeftOut(at=8, stage=2, name=HOSTILE, why=HOSTILE))
    journal.close()
    for words in (
        ["status", run.path],
        ["status", run.path, "--json"],
        ["report", run.path],
        ["report", run.path, "--json"],
    ):
        status, said = command(*words)
        assert (status, bool(said)) == (0, True), said
    assert "\u202e" not in (run.path / "report.md").read_text()


def test_hostile_arguments(tmp_path, command):
    """Commands, runs, rules, options and folders that do not exist are quoted in the answer."""
    for words in ([HOSTILE], ["status", HOSTILE], ["status", "--" + HOSTILE], ["rules", HOSTILE], ["rules", HOSTILE, "--json"],
                  ["run", "--rule", HOSTILE, "--", "x"], ["run", "--on-finding", HOSTILE, "--", "x"], ["run", "--", HOSTILE],
                  ["run", "--on-event", HOSTILE, "--", "x"], ["resume", HOSTILE], ["report", HOSTILE], ["diagnose", HOSTILE],
                  ["diagnose", HOSTILE, "--json"], ["init", HOSTILE], ["fit", HOSTILE + ".toml"], ["run", HOSTILE + ".toml"],
                  ["drill", HOSTILE], ["check", "--only", HOSTILE, "--", "x"], ["run", "a.toml", HOSTILE]):  # fmt: skip
        status, said = command(*words)
        assert status in (1, 2), (words, said)
        assert said


def test_hostile_plan_and_data(tmp_path, command):
    """Keys and values of a plan, lines that are no TOML, paths and names of a dataset."""
    escaped = json.dumps(HOSTILE)
    toml = escaped.replace("\\u202e", "\u202e")
    plans = [f"{toml} = 1\n", f"[settings]\nmodel = {toml}\ndata = {toml}\n{toml} = 3\n", f"trainer = {toml}\n", "a = \x1b[2J\n",
             f"command = [{toml}]\ncwd = {toml}\n[[stages]]\nname = {toml}\n[[stages]]\nname = {toml}\n"]  # fmt: skip
    for number, text in enumerate(plans):
        (tmp_path / f"{number}.toml").write_text(text)
        for words in (
            ["run", f"{number}.toml"],
            ["check", f"{number}.toml", "--only", "plan"],
            ["fit", f"{number}.toml"],
        ):
            status, said = command(*words)
            assert status in (0, 2, 3), (text, said)
            assert said
    (tmp_path / "data.yaml").write_text(f"path: {escaped}\ntrain: {escaped}\nval: {escaped}\nnames: [{escaped}]\n")
    status, said = command("init", "data.yaml", "--out", HOSTILE)
    assert said


def test_hostile_log(tmp_path, command):
    (tmp_path / f"{HOSTILE}.log").write_text(
        f"epoch 1 loss 0.5\nTraceback (most recent call last):\nValueError: {HOSTILE}\n"
    )
    status, said = command("diagnose", f"{HOSTILE}.log", "--exit-code", "1", "--report", tmp_path / HOSTILE)
    assert (status, "ValueError" in said) == (3, True)


def test_hostile_run(tmp_path):
    """A real run in a hostile folder, with a hostile command, that fails and is resumed. A hostile name is refused."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    words = [
        "run",
        "--max-attempts",
        "1",
        "--on-event",
        "true",
        "--",
        PYTHON,
        "-c",
        "import sys; sys.exit(3)",
        HOSTILE,
    ]
    named = ["run", "--name", HOSTILE, "--", "true"]
    for more, status in ((named, 2), (words, 4), (["status"], 0), (["resume"], 4), (["report"], 0)):
        done = subprocess.run(
            [str(HOLDFAST), *more], cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
        assert not ACTS.search(done.stdout + done.stderr), (more, done.stderr)
        assert done.returncode == status, done.stderr


def test_colours_are_all_that_a_console_adds(monkeypatch):
    """On a terminal there are colours of ours, and nothing else that begins with an escape."""
    from rich.text import Text

    shown = io.StringIO()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console(shown).print(Text(HOSTILE, style="red"), HOSTILE.replace("[", "\\["))
    assert not ACTS.search(re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()))
    assert "\x1b[31m" in shown.getvalue()


def test_a_name_cannot_begin_a_line_of_its_own(capsys):
    """A line break in a name does not make a second line that looks like ours; an error keeps its own lines."""
    print_line("run x\nholdfast: all is well")
    print_json({"name": HOSTILE})
    say_error("first\nNext: second")
    said = capsys.readouterr()
    assert said.out.count("\n") == 2
    assert json.loads(said.out.split("\n")[1]) == {"name": HOSTILE}
    assert said.err == "holdfast: first\nNext: second\n"


def test_nothing_prints_past_the_console():
    """`print`, `Console` and writes to a stream stand in render/console.py, and in what writes lines that passed `printable`."""
    root = Path(package.__file__).parent
    allowed = {"render/console.py", "render/console_reporter.py", "render/panel.py"}
    ways = re.compile(r"print|rich\.print|typer\.s?echo|.*(stderr|stdout|_stream)\.write(lines)?")
    found = set()
    for path in root.rglob("*.py"):
        name = str(path.relative_to(root))
        if "probe" in path.parts or name.startswith(
            "simulator/"
        ):  # run inside trainings, or print what the console printed
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            makes_console = (
                isinstance(node, ast.ImportFrom) and node.module == "rich" and "console" in ast.unparse(node)
            )
            if makes_console or (isinstance(node, ast.Call) and ways.fullmatch(ast.unparse(node.func))):
                found.add(name)
        if "from rich.console import" in path.read_text() and re.search(r"[^\w.]Console\(", path.read_text()):
            found.add(name)
    assert found <= allowed
