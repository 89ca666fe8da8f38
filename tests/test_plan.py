"""Plans: kept as TOML, and refused with a sentence where they make no sense."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.schema.errors import CommandNotRunnable, PlanInvalid
from holdfast.schema.plan import Budget, HangSettings, Plan, Stage, from_toml, to_toml
from holdfast.storage.folder import RunFolder
from holdfast.storage.plan_copy import read_plan, write_plan


def test_plan_survives_toml():
    """Quotes, backslashes, newlines, emoji and control characters in a command come back as they were."""
    plan = Plan(
        command=["python", "a b.py", 'it\'s "x"', "back\\slash", "new\nline", "🦭", "\x7f\x01"],
        cwd="/work",
        budget=Budget(attempts=7),
        checkpoint="*.pt",
        resume_with="--resume {checkpoint}",
        hang=HangSettings(floor_s=5.0),
        rules={"loss-all-zero": {"severity": "off", "steps": 30.0}},
    )
    assert from_toml(to_toml(plan)) == plan


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": []}, "no command"),
        ({"budget": {"attempts": 0}}, "no attempt"),
        ({"resume_with": "--resume {checkpoint}"}, "--checkpoint"),
    ],
)
def test_senseless_plan_says_what_to_do(settings, message):
    with pytest.raises(PlanInvalid) as caught:
        msgspec.convert({"command": ["x"], "cwd": "/", **settings}, Plan)
    assert message in str(caught.value)
    assert caught.value.next_step


def test_secrets_of_a_plan_are_not_written_down(tmp_path, monkeypatch):
    """Neither those of a stage's command nor those of its variables; a variable comes from where the user has it."""
    run = RunFolder(tmp_path)
    plan = Plan(
        cwd="/",
        command=["a"],
        stages=[Stage(name="1", command=["train", "--api-key", "s3cr3t-value"])],
        environment={"WANDB_API_KEY": "s3cr3t-value", "OMP_NUM_THREADS": "1"},
    )
    write_plan(run, plan)
    assert "s3cr3t" not in run.plan.read_text()
    with pytest.raises(CommandNotRunnable, match="WANDB_API_KEY"):
        read_plan(run, [])
    write_plan(run, msgspec.structs.replace(plan, stages=[]))
    monkeypatch.setenv("WANDB_API_KEY", "given-again")
    assert read_plan(run, []).environment == {"WANDB_API_KEY": "given-again", "OMP_NUM_THREADS": "1"}


def test_broken_toml_is_named():
    with pytest.raises(PlanInvalid, match="cannot be read"):
        from_toml("command = [")
    with pytest.raises(PlanInvalid, match=r"budget.attempts"):
        from_toml('command = ["x"]\ncwd = "/"\n[budget]\nattempts = "three"')
