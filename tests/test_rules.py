"""Every rule is held to its own cases, and the engine to its manners."""

from __future__ import annotations

import msgspec
import pytest
from histories import seen

from holdfast.judge import tuning
from holdfast.judge.history import losses, started
from holdfast.judge.rule import Rule
from holdfast.judge.rules import all_rules
from holdfast.words import events
from holdfast.words.errors import UsageError
from holdfast.words.verdicts import Finding


def findings_of(history, rules=None):
    picture = seen(history, rules=rules)
    return picture.findings


CASES = [(rule, case) for rule in all_rules() for case in rule.cases]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=[f"{rule.id}: {case.says}" for rule, case in CASES])
def test_rule_keeps_its_cases(rule, case):
    """A rule speaks on its failing histories with the right severity, and is silent on the healthy ones."""
    found = findings_of(case.history, [rule])
    assert (found[-1].severity if found else None) == case.expected


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_rule_is_whole(rule):
    """A rule has a stable kebab-case id that matches its file, a page, and cases of both sorts."""
    assert rule.judge.__module__.rpartition(".")[2].replace("_", "-") == rule.id
    assert len(rule.page.split()) > 30
    assert {case.expected is None for case in rule.cases} == {True, False}


def test_every_finding_says_what_to_look_at():
    """A finding carries evidence and attempt and step, so that nothing is claimed without its reason."""
    for rule, case in CASES:
        for finding in findings_of(case.history, [rule]):
            assert finding.evidence, (rule.id, case.says)
            assert finding.attempt == 1
            assert finding.step is not None


def test_rule_that_raises_becomes_a_note():
    """A faulty rule is noted once and costs nobody a training."""

    def judge(picture):
        raise ZeroDivisionError("a bug")

    rule = Rule(id="faulty", kind="learning", on=(events.Step,), judge=judge, cases=[], page="")
    found = findings_of([*started(), *losses(1.0, 2.0, 3.0)], [rule])
    assert [(f.severity, f.rule) for f in found] == [("note", "faulty")]
    assert "a bug" in found[0].message


def test_rule_speaks_again_only_when_it_is_worse():
    """One warning, then one fatal finding: not one for each step."""
    found = findings_of([*started(), *losses(1.0, *["nan"] * 50)])
    assert [f.severity for f in found if f.rule == "loss-not-finite"] == ["warn", "fatal"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], [("loss-all-zero", "fatal", 20)]),
        (["loss-all-zero=off"], []),
        (["loss-all-zero=warn"], [("loss-all-zero", "warn", 20)]),
        (["loss-all-zero.steps=25"], [("loss-all-zero", "fatal", 25)]),
    ],
)
def test_rules_can_be_switched_off_capped_and_tuned(settings, said):
    """What the user sets for a run stands in its first event, so that judging it again later gives the same."""
    first, *rest = started()
    history = [msgspec.structs.replace(first, tuning=tuning.parse(settings)), *rest, *losses(*[0.0] * 30)]
    assert [(f.rule, f.severity, f.step) for f in findings_of(history)] == said


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("loss-al-zero=off", "loss-all-zero"),
        ("loss-all-zero.step=3", "steps"),
        ("loss-all-zero=loud", "off, note, warn, fatal"),
        ("loss-all-zero.steps=many", "ID.LIMIT=NUMBER"),
        ("loss-all-zero", "ID=off"),
    ],
)
def test_wrong_setting_names_the_right_one(setting, says):
    with pytest.raises(UsageError) as caught:
        tuning.parse([setting])
    assert says in caught.value.next_step


def test_all_zero_is_found_within_twenty_steps():
    """The first field report's failure is known after 20 steps, not after 43 minutes."""
    found = findings_of([*started(), *losses(*[0.0] * 25)])
    assert [(f.rule, f.step) for f in found] == [("loss-all-zero", 20)]


def test_findings_are_frozen():
    finding = Finding(rule="x", severity="note", message="m")
    with pytest.raises(AttributeError):
        finding.message = "other"
