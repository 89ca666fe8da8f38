"""Nothing that Holdfast writes holds a secret, and a secret that is an ordinary word does no harm to the record."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from running import AGAIN, environment, holdfast, holdfast_run, training

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.run_state import RunState, load_run_state
from holdfast.schema import events
from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.plan import Budget, Plan, Stage
from holdfast.schema.verdicts import Action, Change, Decision, Finding, Proof
from holdfast.storage import folder
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import JournalWriter, replay
from holdfast.storage.plan_copy import read_plan, write_plan
from holdfast.storage.redact import SENTENCES, VOCABULARY, Redactor, redactor_for
from holdfast.supervisor import supervisor
from holdfast.supervisor.event_pipeline import EventPipeline
from holdfast.testing.histories import started

PYTHON = sys.executable
WORDS = ["python", "platform", "command", "attempt", "holdfast", "true", "event", "supervisor", "journal", "checkpoint",
         "failed", "restart", "not-learned", "loss-all-zero", "supervisor gone", "start over", "memory", "SIGKILL",
         "float64-unsupported", "mAP50-95", "12345678", "training"]  # fmt: skip
TOKEN = "hf_" + "a1B2" * 8


def every_kind(path: str) -> list[events.AnyEvent]:
    """One event of each kind that the supervisor writes, in its own words."""
    finding = Finding(rule="loss-all-zero", severity="warn", message="the training failed", evidence=["python failed"])
    decision = Decision(action=Action.RESTART, attempt=1, why="restart", cause="float64-unsupported",
                        changes=[Change(setting="environment.PYTORCH_X", before=None, after="1", why="memory")])  # fmt: skip
    resume = events.Resume(how="start over", checkpoint=path, why="no checkpoint of this training")
    return [
        *started(),
        events.AttemptStarted(at=1, attempt=2, pid=3, command=["python", "train.py"], resume=resume),
        events.OutputMatched(at=1, rule="nms-cut-short", stream="stderr", text="the event of this attempt"),
        events.SupervisorNote(at=1, what="keeping awake", detail="python"),
        events.FindingMade(at=1, finding=finding),
        events.Signalled(at=1, signal="SIGKILL", action="no further attempt", ends_run=True),
        events.CheckpointsBackedUp(at=1, attempt=2, files=[events.BackedUpFile(path=path, kept=path, bytes=3)]),
        events.Reloaded(at=1, path=path, loads=True),
        events.DecisionMade(at=1, decision=decision),
        events.AttemptEnded(at=2, attempt=2, code=1, stopped_by="supervisor gone", last_lines=["CUDA out of memory"]),
        events.StageStarted(at=2, stage=1, of=1, name="training", folder="1-training", weights=path),
        events.StageEnded(at=2, stage=1, name="training", verdict="failed", reason="failed", metric="mAP50-95", best=path),
        events.RunEnded(at=3, verdict="not-learned", reason="true", proofs=[Proof(name="memory", answer="holds")]),
    ]  # fmt: skip


def vocabulary(value, field=""):
    """Everything in an event that must survive: all but sentences and commands."""
    if isinstance(value, msgspec.Struct):
        named = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: vocabulary(item, name) for name, item in named.items() if name not in {*SENTENCES, "command"}}
    return [vocabulary(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("word", WORDS)
def test_password_that_is_a_word_of_ours_does_no_harm(word, tmp_path):
    """Every event is read back with its tags, names, verdicts and paths as they were; the rules judge what really happened."""
    journal = JournalWriter(tmp_path / "journal.jsonl")
    recorder = EventPipeline(
        journal, Engine(RunState()), [], lambda: 1.0, redactor_for(None, {"DB_PASSWORD": word}, [tmp_path])
    )
    recorded = every_kind(str(tmp_path / "python training memory-checkpoint.pt"))
    for event in recorded:
        recorder.record(event)
    journal.close()
    read = [entry.event for entry in replay(RunFolder(tmp_path))]
    kept = [
        event for event in read if not isinstance(event, events.FindingMade) or event.finding.rule == "loss-all-zero"
    ]
    assert [vocabulary(event) for event in kept] == [vocabulary(event) for event in recorded]
    assert recorder.state.attempts[-1].ended.last_lines == ["CUDA out of memory"]


def test_all_these_words_at_once_in_a_real_run(tmp_path):
    """Each of them the password of something: the run works, is reported, resumed and stays readable."""
    secrets = {f"X{n}_PASSWORD": word for n, word in enumerate(WORDS)}
    ran = holdfast_run(tmp_path, PYTHON, "-c", "import sys; sys.exit('training failed')", env=secrets)
    assert (ran.code, ran.summary["verdict"]) == (4, "failed"), ran.stderr
    assert "Traceback" not in ran.stderr
    assert "internal error" not in ran.stderr
    assert ran.rules
    assert ran.run.plan.read_text().count("***") == 0
    again = holdfast(tmp_path, "resume", "run", env=secrets)
    assert (again.code, len(again.summary["attempts"])) == (4, 2), again.stderr
    assert holdfast(tmp_path, "report", "run", env=secrets).code == 0


def test_fields_with_fixed_words_are_never_changed():
    """Every field of an event whose type is a Literal stands in the vocabulary; an Enum is told by its type."""
    seen, fixed = set(), set()

    def walk(kind):
        for part in (*get_args(kind), kind):
            if isinstance(part, type) and issubclass(part, msgspec.Struct) and part not in seen:
                seen.add(part)
                for name, hint in get_type_hints(part).items():
                    if get_origin(hint) is Literal:
                        fixed.add(name)
                    walk(hint)
            elif part is not kind:
                walk(part)

    for kind in events.KINDS:
        walk(kind)
    assert len(seen) > 40
    assert fixed
    assert fixed <= VOCABULARY
    changed = Redactor((), {"PASSWORD": "restart"}).event(Decision(action=Action.RESTART, attempt=1, why="restart"))
    assert (changed.action, changed.why) == (Action.RESTART, "***")
    assert isinstance(changed.action, Enum)


def test_plan_holds_no_secret(tmp_path, monkeypatch):
    """Neither in settings nor in values of variables, commands, notifiers or stages; and it is resumed once they are given again."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    run = RunFolder(tmp_path)
    plan = Plan(
        cwd="/",
        command=["bash", "-c", "export WANDB_API_KEY=s3cr3t-one; python t.py"],
        settings={
            "comet_api_key": "s3cr3t-two",
            "nested": {"password": "s3cr3t-three"},
            "data": "d.yaml",
            "imgsz": 640,
        },
        environment={"DATABASE_URL": "postgres://u:s3cr3t-four@h/db", "OMP_NUM_THREADS": "1"},
        on_event="notify --token s3cr3t-five",
        stages=[Stage(name="a", settings={"hub": TOKEN}), Stage(name="b", command=["t.py", "token=s3cr3t-six"])],
    )
    write_plan(run, plan)
    written = run.plan.read_text()
    assert "s3cr3t" not in written
    assert TOKEN not in written
    assert all(kept in written for kept in ("d.yaml", "640", "postgres://u:***@h/db", "python t.py", "--token"))
    with pytest.raises(CommandNotRunnable, match="DATABASE_URL"):
        read_plan(run, [])
    monkeypatch.setenv("DATABASE_URL", "postgres://u:again@h/db")
    with pytest.raises(CommandNotRunnable, match="command of this run"):
        read_plan(run, [])
    write_plan(run, Plan(cwd="/", command=["a"], settings={"comet_api_key": "s3cr3t-two"}))
    with pytest.raises(CommandNotRunnable, match="settings of this run"):
        read_plan(run, [])
    write_plan(run, Plan(cwd="/", command=["a"], environment=plan.environment))
    assert read_plan(run, []).environment["DATABASE_URL"] == "postgres://u:again@h/db"


def test_secret_of_a_command_is_in_no_file_that_is_shared(tmp_path):
    """From `bash -c` through what the training prints: not in the journal, the summary, the reports or the plan."""
    program = (
        f"export MY_TOKEN=zebra7crossing; {PYTHON} -c \"import os, sys; sys.exit('refused ' + os.environ['MY_TOKEN'])\""
    )
    ran = holdfast_run(tmp_path, "bash", "-c", program, options=["--max-attempts", "1"])
    assert ran.code == 4
    for path in ran.folder.rglob("*"):
        if path.is_file() and path.name not in ("stdout.log", "stderr.log"):
            assert b"zebra7crossing" not in path.read_bytes(), path
    assert "refused ***" in (ran.folder / "report.md").read_text()
    assert b"refused zebra7crossing" in (ran.folder / "attempts/1/stderr.log").read_bytes()


def test_token_in_the_name_of_a_checkpoint(tmp_path):
    """The probe writes the name without it; the file is kept safe, gone on from and read back all the same."""
    part = f"""
    name = "state-{TOKEN}.pt"
    if "--resume" in sys.argv:
        state = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
        model.load_state_dict(state["model"])
        start = state["step"]
    def after(step):
        if step % 5 == 0:
            torch.save({{"model": model.state_dict(), "step": step}}, name)
        if step == 12 and FIRST:
            die()
    """
    options = ["--checkpoint", "state-*.pt", *AGAIN[2:], "--backoff", "0"]
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), options=options)
    assert ran.code == 0, ran.stderr
    for path in ran.folder.rglob("*"):
        if path.is_file() and path.suffix != ".pt" and not path.name.startswith("std"):
            assert TOKEN.encode() not in path.read_bytes(), path
    [kept] = ran.of(events.CheckpointsBackedUp)
    assert [file.path.endswith("/state-***.pt") for file in kept.files] == [True]
    assert [path.name for path in (ran.folder / "attempts/1/saved").rglob("*.pt")] == [f"state-{TOKEN}.pt"]
    assert [reloaded.loads for reloaded in ran.of(events.Reloaded)] == [True]
    assert ran.summary["attempts"][1]["resumed"]["step"] == 10


def test_a_supervisor_that_takes_over_finds_the_file_again(tmp_path):
    """The record says `***`; the one file that would be written so is the one that was meant."""
    for name in (f"state-{TOKEN}.pt", "state-best.pt", "state-***.txt"):
        (tmp_path / name).write_text("x")
    saved = events.Saved(at=1, step=1, path=str(tmp_path / f"state-{TOKEN}.pt"))
    redactor = Redactor()
    written = redactor.event(saved)
    assert written.path == str(tmp_path / "state-***.pt")
    assert redactor.restore(written) == saved
    (tmp_path / f"state-hf_{'c3' * 16}.pt").write_text("x")
    assert redactor.restore(written) == written  # two could be meant


def test_commands_in_events_are_bounded(tmp_path):
    """A command of two megabytes would make a line that no reader takes."""
    plan = Plan(
        command=[PYTHON, "-c", "pass", *["x" * 100_000] * 12], cwd=str(tmp_path), budget=Budget(attempts=1), keep_awake=False
    )  # fmt: skip
    run = folder.create(["python"], root=tmp_path)
    supervisor.start(run, plan)
    state = load_run_state(replay(run))
    assert state.started is not None
    assert state.attempt.ended.code == 0
    assert sum(map(len, state.started.command)) < 120_000


def test_environment_of_this_test_is_kept_out(tmp_path):
    """A secret of the environment that the training writes into its own error is not in the finding."""
    part = "raise SystemExit('cannot log in with ' + os.environ['COMET_API_KEY'])"
    env = {"COMET_API_KEY": "correct horse battery"}
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part), env=env, options=["--max-attempts", "1"])
    text = "".join(path.read_text() for path in (ran.run.journal, ran.run.summary, ran.folder / "report.html"))
    assert "correct horse" not in text
    assert "cannot log in with ***" in text
    assert environment(**env)["COMET_API_KEY"] not in os.environ.values()


def test_check_tells_no_secret(tmp_path):
    """What a training that is tried out prints becomes the answer of a check."""
    (tmp_path / "train.py").write_text("import sys\nsys.exit('refused ' + sys.argv[2])\n")
    words = (
        "check",
        "--only",
        "learning-first-steps",
        "--json",
        "--",
        PYTHON,
        "train.py",
        "--api-key",
        "zebra7crossing",
    )
    done = holdfast(tmp_path, *words)
    assert "zebra7crossing" not in done.stdout + done.stderr
    assert "learning-first-steps" in done.stdout
