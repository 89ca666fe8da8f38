"""`run` and `resume` take the same options, and they have the same effect on a command and on a plan file."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from running import holdfast

from holdfast.cli import options
from holdfast.cli.app import app
from holdfast.launch.command_run import apply_options
from holdfast.schema.plan import Budget, Plan

ONLY_RUN = {"name", "folder", "check"}
"""They name or check a new run."""


def names_of(command):
    found = typer.main.get_command(app).commands[command].params
    return {parameter.name for parameter in found if parameter.param_type_name == "option"}


def test_run_and_resume_take_the_same_options():
    assert names_of("run") - ONLY_RUN == names_of("resume")
    assert set(options.SHARED) < names_of("run")


def test_options_change_only_what_they_name():
    plan = Plan(cwd="/", command=["x"], budget=Budget(attempts=4, hours=2.0), checkpoint="*.pt")
    changed = apply_options(plan, {"max_attempts": 7, "backoff": 1.0, "rule": ["loss-all-zero=warn"]})
    assert (changed.budget.attempts, changed.budget.hours, changed.backoff_s) == (7, 2.0, 1.0)
    assert changed.checkpoint == "*.pt"
    assert changed.rules == {"loss-all-zero": {"severity": "warn"}}
    assert apply_options(plan, {}) == plan


@pytest.mark.parametrize("source", ["kept", "file"])
def test_resume_uses_its_options(tmp_path, source):
    """Of a run whose plan was kept, and with its changed plan file: a new limit, a new rule, a program for events."""
    script = tmp_path / "train.py"
    script.write_text("import os; raise SystemExit(0 if os.environ['HOLDFAST_ATTEMPT'] > '2' else 5)")
    plan = tmp_path / "plan.toml"
    plan.write_text(f'command = ["{sys.executable}", "train.py"]\n[budget]\nattempts = 1\n')
    holdfast(tmp_path, "run", "--no-check", "--dir", "run", "plan.toml")
    given = ["--max-attempts", "3", "--backoff", "0", "--rule", "probe-absent=off"]
    given += ["--on-event", "cp /dev/stdin told.json", "--json"]
    done = holdfast(tmp_path, "resume", *given, "run", *(["plan.toml"] if source == "file" else []))
    summary = json.loads(done.stdout.splitlines()[-1])
    assert len(summary["attempts"]) > 1
    assert "probe-absent" not in {finding["rule"] for finding in summary["findings"] if finding["attempt"] > 1}
    assert json.loads((tmp_path / "told.json").read_text())["event"] == "end"
