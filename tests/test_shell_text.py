"""Commands that Holdfast proposes: what somebody copies into a shell does what it says, whatever the names in it hold."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from holdfast.diagnosis.explanation import explain
from holdfast.diagnosis.run_state import load_run_state
from holdfast.render.status import print_status, status_of
from holdfast.render.text import printable
from holdfast.schema import events
from holdfast.schema.errors import RunExists, RunIsLive
from holdfast.schema.plan import Plan
from holdfast.schema.shell_text import shell_join, shell_quote
from holdfast.storage import folder
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import Entry, JournalWriter
from holdfast.storage.lock import RunLock
from holdfast.storage.plan_copy import write_plan

EVIL = "a;touch $IFS'x'$(touch pwn)`id`&-1"
NAMES = (
    EVIL,
    "with space",
    "new\nline",
    "esc\x1b[31m",
    "\u202eturned",
    "quo'te\\\x01",
    "\udcff.pt",
    "*",
    "",
    "-n",
    "é",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_a_quoted_word_as_the_name_itself(name):
    """bash gives back the very bytes, and nothing in the word is left out when it is shown."""
    word = shell_quote(name)
    said = subprocess.run(["bash", "-c", f"printf %s {word}"], stdout=subprocess.PIPE, check=True)
    assert said.stdout == name.encode("utf-8", "surrogateescape")
    assert printable(word, 1000) == word


def test_words_are_joined_each_by_itself():
    """As shlex does, where nothing in them cannot be shown."""
    assert shell_join(["python", "train.py", "a b"]) == shlex.join(["python", "train.py", "a b"])


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """One of a name that would run commands, whose supervisor is gone."""
    made = RunFolder(tmp_path / ".holdfast" / "runs" / EVIL)
    made.path.mkdir(parents=True)
    write_plan(made, Plan(cwd=str(tmp_path), command=["no-such-program"]))
    journal = JournalWriter(made.journal)
    journal.append(
        events.RunStarted(
            at=1.0, run=EVIL, command=["x"], cwd="/", holdfast="0", platform="", python="", supervisor=1, schema=1
        )
    )
    journal.append(events.AttemptStarted(at=2.0, attempt=1, pid=4194304, command=["x"]))
    journal.close()
    return made


def test_status_quotes_the_name_of_the_run(run, capsys):
    """The command that it proposes has the name as one word."""
    print_status(status_of(run), as_json=False)
    proposed = next(line for line in capsys.readouterr().out.splitlines() if "next: " in line)
    assert shlex.split(proposed.split("next: ", 1)[1]) == ["holdfast", "resume", EVIL]


def test_status_and_explanation_agree_on_the_command(run, capsys):
    """Of an interrupted run: the step that resumes is found by what it is, and its command is the quoted one."""
    journal = JournalWriter(run.journal)
    journal.append(events.AttemptEnded(at=3.0, attempt=1, code=None, signal="SIGINT", last_step=0, stopped_by="user"))
    journal.append(events.RunEnded(at=4.0, verdict="interrupted", reason="by you", exit_status=130))
    journal.close()
    status = status_of(run)
    steps = [step for step in status["explanation"]["next_steps"] if step["resumes"]]
    assert [shlex.split(step["command"]) for step in steps] == [["holdfast", "resume", EVIL]]
    print_status(status, as_json=False)
    assert f"holdfast resume {shlex.quote(EVIL)}" in capsys.readouterr().out


def test_errors_quote_what_they_propose(run, tmp_path):
    """Of a run that is live, and of a folder that holds one already."""
    with RunLock(run), pytest.raises(RunIsLive) as live, RunLock(run):
        pass
    assert shlex.split(live.value.next_step.split(": ", 1)[1]) == ["holdfast", "status", EVIL]
    with pytest.raises(RunExists) as there:
        folder.create(["x"], root=tmp_path, folder=run.path)
    assert shlex.quote(str(run.path)) in there.value.next_step


def test_a_name_that_looks_like_an_option_is_given_as_a_path(tmp_path):
    """`holdfast resume --json-1` would be something else."""
    run = RunFolder(tmp_path / ".holdfast" / "runs" / "--json-1")
    assert run.shell_reference == shlex.quote(str(run.path))


def test_a_rule_to_warn_quotes_the_command_of_the_run():
    """Its words come from the record, and a line break in one of them stays inside of it."""
    started = events.RunStarted(
        at=1.0,
        run="r",
        command=["python", "a\nb;c"],
        cwd="/",
        holdfast="0",
        platform="",
        python="",
        supervisor=1,
        schema=1,
    )
    began = events.AttemptStarted(at=2.0, attempt=1, pid=1, command=["python"])
    ended = events.AttemptEnded(at=3.0, attempt=1, code=1, stopped_by="rule", rule="loss-all-zero")
    state = load_run_state(Entry(event, 1) for event in (started, began, ended))
    command = next(step.command for step in explain(state).next_steps if step.command)
    assert command == "holdfast run --rule loss-all-zero=warn -- python $'a\\012b;c'"
