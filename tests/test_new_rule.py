"""A new rule is one file: it is found, documented, used for the explanation and answered with its remedies."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

RULE = '''"""The machine got wet.

**What it means.** The machine stands in water.
"""

from holdfast.diagnosis.exits import find_failure
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema.events import AttemptEnded
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started


def judge(state):
    failure = find_failure(state)
    if failure is None or failure.code != 77:
        return None
    return Finding(severity="fatal", message="The machine got wet.", evidence=["exit status 77"])


RULE = Rule(
    kind="exit",
    on=(AttemptEnded,),
    judge=judge,
    cause=99,
    remedies=("one-thread",),
    charts=("memory",),
    cases=lambda: [
        Case("wet", [*started(), *ended(77)], "fatal"),
        Case("dry", [*started(), *ended(1)], None),
    ],
)
'''


@pytest.fixture
def run_with_rule(tmp_path):
    """Run a command of a Holdfast that has one rule more."""
    (tmp_path / "added" / "machine_got_wet.py").parent.mkdir()
    (tmp_path / "added" / "machine_got_wet.py").write_text(RULE)
    begin = f"from holdfast.diagnosis import rules; rules.__path__.append({str(tmp_path / 'added')!r})"

    def run(*arguments):
        program = f"import sys; {begin}; from holdfast.__main__ import main; main()"
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    return run


def test_new_rule_is_listed_with_its_page(run_with_rule):
    listed = json.loads(run_with_rule("rules", "--json").stdout)
    assert "machine-got-wet" in {rule["id"] for rule in listed}
    assert "stands in water" in run_with_rule("rules", "machine-got-wet").stdout


def test_new_rule_explains_a_failure_and_its_remedy_is_tried(run_with_rule, tmp_path):
    """Nothing but its file names the rule. The second attempt gets the change that the rule asks for."""
    script = tmp_path / "train.py"
    script.write_text("import os; raise SystemExit(77 if os.environ.get('OMP_NUM_THREADS') != '1' else 0)")
    done = run_with_rule("run", "--dir", "run", "--no-check", "--", sys.executable, str(script))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [attempt["cause"] for attempt in summary["attempts"]] == ["machine-got-wet", None], done.stderr
    assert summary["attempts"][1]["changes"]
