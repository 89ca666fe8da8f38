"""No decision reads prose: facts have codes and types, sentences are for people."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
PACKAGES = ("diagnosis", "remedies", "supervisor", "launch", "render", "preflight", "frameworks")
PROSE = {"what", "message", "why", "detail", "description", "text", "reason"}
"""Attributes of findings, notes, decisions and verdicts that contain sentences."""
SEARCHES = {"startswith", "endswith", "find", "index", "count", "search", "match", "fullmatch", "findall", "finditer"}
OUTPUT = "a line that the training or the system printed"
SHOWN_ONCE = "whether the same sentence would be shown twice"
CHANGED = "whether the numbers of a finding have changed"
FULL_STOP = "only adds a full stop"
ALLOWED = {
    "diagnosis/exits.py: item.text": OUTPUT,
    "diagnosis/rules/killed_out_of_memory.py: item.text": OUTPUT,
    "frameworks/ultralytics/framework.py: line.text": OUTPUT,
    "frameworks/ultralytics/rules/rolled_back_after_nan.py: line.text": OUTPUT,
    "preflight/checks/learning_first_steps.py: found.message": FULL_STOP,
    "diagnosis/aggregators/timing.py: pause.what": "not a sentence: the kind of a pause",
    "render/report/compare.py: row.what": "not a sentence: the name of a setting",
    "diagnosis/engine.py: before.message": CHANGED,
    "diagnosis/engine.py: now.message": CHANGED,
    "diagnosis/explanation.py: step.text": SHOWN_ONCE,
    "diagnosis/explanation.py: steps[0].text": FULL_STOP,
    "render/panel.py: finding.message": SHOWN_ONCE,
    "render/report/model.py: self.reason": SHOWN_ONCE,
}
"""The file and the expression -> why it may be read."""


def prose(node: ast.expr) -> ast.Attribute | None:
    """The attribute with a sentence that an expression reads: itself, a part of it, or the result of its method."""
    while not isinstance(node, ast.Attribute) or node.attr not in PROSE:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.BoolOp):
            return next((found for value in node.values if (found := prose(value)) is not None), None)
        else:
            return None
    return node


def reads(tree: ast.AST):
    """Every sentence that is compared or searched."""
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(
            isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops
        ):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            operands = [node.func.value, *node.args]
        yield from (ast.unparse(found) for operand in operands if (found := prose(operand)) is not None)


def test_no_decision_reads_prose():
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {read}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for read in reads(ast.parse(path.read_text()))
    }
    assert found - ALLOWED.keys() == set(), "give the fact a code or a type"
    assert ALLOWED.keys() - found == set(), "no longer needed here"


@pytest.mark.parametrize(
    "code",
    [
        "note.what == HANDOVER",
        "any(LOST in note.what for note in notes)",
        "decision.why.startswith(('no attempt', 'it was'))",
        "re.search('memory', (finding.message or '').lower())",
        "PATTERN.match(failure.detail[:80])",
    ],
)
def test_what_is_forbidden(code):
    assert list(reads(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["note.code == 'stopped-early'", "f'{note.what}: {note.detail}'", "bool(finding.message)"]
)
def test_what_is_not(code):
    assert not list(reads(ast.parse(code)))
