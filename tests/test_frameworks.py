"""The frameworks, each in a package of its own: no other module knows their names, and another one is only a package more."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from histories import seen

import holdfast
from holdfast.diagnosis.rules import by_id
from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan import Plan
from holdfast.testing.histories import ended, memory, started
from holdfast.testing.series import FRAMEWORK, epoch

ROOT = Path(holdfast.__file__).parent
EXEMPT = ("frameworks/ultralytics", "simulator")
NAME = re.compile(r"ultralytics|yolo", re.IGNORECASE)
CITATION = re.compile(r"\bultralytics(?:/\w+)?#\d+")


def names_of_a_framework(source: str):
    """The line and the text of each name and string that names one. Docstrings may."""
    tree = ast.parse(source)
    docstrings = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        values = [] if node in docstrings else [value for _, value in ast.iter_fields(node)]
        for text in (part for value in values for part in (value if isinstance(value, list) else [value])):
            if isinstance(text, (str, bytes)) and NAME.search(CITATION.sub("", str(text))):
                yield f"line {getattr(node, 'lineno', '?')}: {text!r}"


def test_no_module_outside_a_framework_names_it():
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT)
        if not any(inside.is_relative_to(place) for place in EXEMPT):
            found[str(inside)] = list(names_of_a_framework(path.read_text()))
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import ultralytics", 1),
        ("from holdfast.frameworks.ultralytics import x", 1),
        ("def make_yolo(): pass", 1),
        ("x.is_yolo", 1),
        ("f(ultralytics=1)", 1),
        ("f'{x} of Ultralytics'", 1),
        ("x = b'yolo'", 1),
        ('"""Ultralytics does this."""', 0),
        ("class A:\n    x = 1\n    '''As YOLO does.'''", 0),
        ("x = 1  # as in Ultralytics", 0),
        ("sources = 'pytorch#1, ultralytics/hub#1199, ultralytics#7'", 0),
    ],
)
def test_names_are_found_in_code_only(source, names):
    assert len(list(names_of_a_framework(source))) == names


@pytest.mark.parametrize(("source", "hint"), [(FRAMEWORK, " (cache=False)"), ("loader", "")])
def test_advice_names_the_settings_of_the_framework_in_use(source, hint):
    history = [*started(), *epoch(1, step=9, source=source), *memory(0.3), *ended(signal="SIGKILL")]
    (finding,) = seen(history, rules=[by_id()["killed-out-of-memory"]]).findings
    assert f"disable dataset caching{hint}" in finding.remedies


# --- a second framework -----------------------------------------------------------------------------------------------

TOY = {
    "__init__.py": """
from holdfast.frameworks.base import Framework

class Toy(Framework):
    name, title, builds_command, hints = "toy", "Toy", True, {"no-cache": "keep=no"}

    def recognizes(self, command, imports=()):
        return "toytrain" in command or "toy" in imports

    def build_stage(self, plan, stage, settings, command, weights):
        return settings, ["toytrain", *(f"{name}={value}" for name, value in settings.items())]

FRAMEWORK = Toy()
""",
    "probe/toy/__init__.py": """
from ... import protocol

def begin_dry_run():
    print("toy", protocol.__name__)
""",
    "rules/toy_fact.py": """
from holdfast.diagnosis.rule import Rule
from holdfast.schema.events import AttemptEnded

RULE = Rule(kind="exit", on=(AttemptEnded,), judge=lambda state: None, cases=list)
""",
    "checks/toy_check.py": """
from holdfast.preflight.checks.check import Answer, Check

CHECK = Check(kind="environment", run=lambda context: Answer(context.framework.title))
""",
    "remedies/toy_step.py": """
from holdfast.remedies.step import remedy_step

@remedy_step("none")
def toy_step(context):
    "Do less."
""",
}


@pytest.fixture
def run_with_toy(tmp_path):
    """Run a program in a Holdfast that has one framework more; return what it prints."""
    for name, text in TOY.items():
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    begin = f"from holdfast import frameworks\nframeworks.__path__.append({str(tmp_path)!r})\n"

    def run(program: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_second_framework_is_recognized(run_with_toy):
    program = """
for found in (["toytrain", "x=1"], ["yolo", "train"], ["python", "train.py"]):
    print(frameworks.find_framework(None, found).name)
print(frameworks.default().name)
"""
    assert run_with_toy(program) == ["toy", "ultralytics", "command", "ultralytics"]


def test_second_framework_is_the_trainer_of_a_plan(run_with_toy, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('trainer = "toy"\n[settings]\nwidth = 3\n[[stages]]\nsettings = { depth = 2 }\n')
    program = f"""
from pathlib import Path
from holdfast.storage.plan.load import read
from holdfast.supervisor.stage_command import stage_plan, stages_of
plan = read(Path({str(plan)!r}))
print(plan.trainer, *stage_plan(plan, stages_of(plan)[0]).command)
"""
    assert run_with_toy(program) == ["toy toytrain width=3 depth=2"]


def test_second_framework_brings_a_rule_and_hints(run_with_toy):
    program = """
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import RunState
from holdfast.storage.journal import Entry
from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan import Plan
from holdfast.testing.histories import started
from holdfast.testing.series import epoch
print([rule.id for rule in all_rules() if rule.id.startswith("toy")])
state = RunState()
for event in (*started(), *epoch(1, step=9, source="toy")):
    state.fold(Entry(event, 1))
print(hint(state, "no-cache", "no-plots"))
"""
    assert run_with_toy(program) == ["['toy-fact']", " (keep=no)"]


def test_second_framework_brings_a_check(run_with_toy):
    program = """
from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks import all_checks
from holdfast.preflight.checks.runner import run_all
checks = [check for check in all_checks() if check.id == "toy-check"]
print([(result.status, result.message) for result in run_all(checks, linux(command=("toytrain",)))])
"""
    assert run_with_toy(program) == ["[('passed', 'Toy')]"]


def test_second_framework_brings_a_remedy_step(run_with_toy):
    program = """
from holdfast.remedies.registry import find_steps
for framework in ("toy", "ultralytics"):
    print([step.id for step in find_steps(["as-it-is", "toy-step"], framework)])
"""
    assert run_with_toy(program) == ["['as-it-is', 'toy-step']", "['as-it-is']"]


def test_second_framework_has_a_part_in_the_training(run_with_toy, tmp_path):
    """It is loaded as a part of the probe, so that it can use the probe's modules."""
    program = f"""
from holdfast.probe.holdfast_probe import frameworks as parts
parts.__path__.append({str(tmp_path / "toy" / "probe")!r})
parts.call("begin_dry_run")
"""
    assert run_with_toy(program) == ["toy holdfast.probe.holdfast_probe.protocol"]


def test_plan_of_an_unknown_framework_is_rejected():
    with pytest.raises(PlanInvalid, match="'toy' is unknown"):
        Plan(cwd="/", trainer="toy")
