"""Every rule is held to its own cases, and the engine to its manners."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from histories import seen

import holdfast
from holdfast.diagnosis import rule_config
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.rule import Rule
from holdfast.diagnosis.rules import all_rules
from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.verdict import collect_proofs
from holdfast.schema import events
from holdfast.schema.errors import UsageError
from holdfast.schema.verdicts import Finding
from holdfast.storage.journal import Entry
from holdfast.testing.histories import ended, entries, losses, started
from holdfast.testing.series import validations


def findings_of(history, rules=None):
    state = seen(history, rules=rules)
    return state.findings


CASES = [(rule, case) for rule in all_rules() for case in rule.cases()]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=[f"{rule.id}: {case.description}" for rule, case in CASES])
def test_rule_keeps_its_cases(rule, case):
    """A rule speaks on its failing histories with the right severity, and is silent on the healthy ones."""
    found = findings_of(case.history, [rule])
    assert (found[-1].severity if found else None) == case.expected


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_rule_is_whole(rule):
    """A rule has a stable kebab-case id that matches its file, a page, and cases of both sorts."""
    assert rule.cases.__module__.rpartition(".")[2].replace("_", "-") == rule.id
    assert len(rule.page.split()) > 30
    assert {case.expected is None for case in rule.cases()} == {True, False}


def test_rules_are_not_listed_elsewhere():
    """What is special about a rule is a field of it: a list of ids somewhere else is forgotten when a rule is added."""
    root, ids = Path(holdfast.__file__).parent, {rule.id for rule in all_rules()}
    for path in root.rglob("*.py"):
        if path.parent.name == "rules" or "simulator" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            listed = {part.value for part in parts if isinstance(part, ast.Constant)} & ids
            assert len(listed) < 2, f"{path.relative_to(root)}: {sorted(listed)}"


def test_rules_contradict_proofs_that_exist():
    proofs = {proof.name for proof in collect_proofs(seen([*started(), *losses(1.0), *ended()]))}
    assert {name for rule in all_rules() for name in rule.contradicts} <= proofs


def test_every_finding_says_what_to_look_at():
    """A finding carries evidence and attempt and step, so that nothing is claimed without its reason."""
    for rule, case in CASES:
        for finding in findings_of(case.history, [rule]):
            assert finding.evidence, (rule.id, case.description)
            assert finding.attempt == 1
            assert finding.step is not None


def test_rule_that_raises_becomes_a_note():
    """A faulty rule is noted once and costs nobody a training."""

    def judge(state):
        raise ZeroDivisionError("a bug")

    rule = Rule(id="faulty", kind="learning", on=(events.Step,), judge=judge, cases=[], page="")
    found = findings_of([*started(), *losses(1.0, 2.0, 3.0)], [rule])
    assert [(f.severity, f.rule) for f in found] == [("note", "faulty")]
    assert "a bug" in found[0].message


def test_rule_speaks_again_only_when_it_is_worse():
    """One warning, then one fatal finding: not one for each step."""
    found = findings_of([*started(), *losses(1.0, *["nan"] * 50)])
    assert [f.severity for f in found if f.rule == "loss-not-finite"] == ["warn", "fatal"]


JUMPS = [7e-05, 0.1, 0.01, 0.2, 0.02, 0.232]
STEADY = [0.4, 0.5, 0.6, 0.65, 0.7, 0.714, 0.72, 0.73, 0.74, 0.75, 0.76, 0.765, 0.769]
KILLED = ended(signal="SIGKILL", last_step=600)


def goes_on(step, how="framework"):
    resume = events.Resume(how=how, checkpoint=None if how == "start over" else "last.pt", step=step)
    return [events.AttemptStarted(at=100.0, attempt=2, pid=101, command=["python"], resume=resume)]


@pytest.mark.parametrize(
    ("history", "stands"),
    [
        ([*validations(fitness=JUMPS), *ended(0, last_step=600)], True),
        ([*validations(fitness=[*JUMPS, *STEADY]), *ended(0, last_step=1900)], False),
        # The attempt that found it was killed, and the next one went on steadily.
        (
            [*validations(fitness=JUMPS), *KILLED, *goes_on(600), *validations(first=7, fitness=STEADY), *ended(0)],
            False,
        ),
        # The next one died before it validated: nothing speaks against what was found.
        ([*validations(fitness=JUMPS), *KILLED, *goes_on(600), *ended(1)], True),
        # Another training is no answer to it.
        (
            [*validations(fitness=JUMPS), *KILLED, *goes_on(0, "start over"), *validations(fitness=STEADY), *ended(0)],
            True,
        ),
        # Neither attempt alone is long enough to tell.
        ([*validations(fitness=JUMPS[:4]), *KILLED, *goes_on(400), *validations(first=5, fitness=JUMPS[4:])], True),
    ],
)
def test_what_is_no_longer_so_at_the_end_is_taken_back(history, stands):
    """A score that jumped in the first epochs, and rose steadily since, does not stand as unstable in the end."""
    found = [finding.rule for finding in findings_of([*started(), *history])]
    assert ("metrics-unstable" in found) == stands


def test_the_journal_keeps_what_was_taken_back():
    """What is taken back is an event of its own: the image follows from the journal alone."""
    told = list(made_of([*started(), *validations(fitness=[*JUMPS, *STEADY]), *ended(0, last_step=1900)]))
    of_it = [(finding.updated, finding.retracted) for finding in told if finding.rule == "metrics-unstable"]
    assert of_it == [(False, False), (True, True)]


def made_of(history):
    state = RunState()
    engine = Engine(state)
    for entry in entries(history):
        for finding in list(engine.take(entry)):
            yield finding
            state.fold(Entry(events.FindingMade(at=0.0, finding=finding), 1))


@pytest.mark.parametrize(
    ("device", "steps", "first_advice", "of_the_cpu"),
    [
        ("cpu", 48, "train longer: 48 steps are very few", False),
        ("cpu", 400, "inspect the predictions", False),
        ("mps", 48, "train longer: 48 steps are very few", True),
        ("0", 400, "validate the checkpoint on the CPU", True),
    ],
)
def test_scores_of_zero_are_blamed_on_what_there_is(device, steps, first_advice, of_the_cpu):
    """A few steps are the reason before any device is, and a CPU is not tried on the CPU."""
    settings = events.Settings(at=0.5, source="ultralytics", values={"device": device})
    falls = losses(*[3.0 - n / steps for n in range(steps)])
    nothing = validations(every=steps // 6, fitness=[0.0] * 6)
    found = findings_of([*started(), settings, *falls, *nothing, *ended(0, last_step=steps)])
    advice = next(f.remedies for f in found if f.rule == "metrics-all-zero" and f.severity == "fatal")
    assert advice[0].startswith(first_advice)
    assert any("on the CPU" in text for text in advice) == of_the_cpu


def test_scores_of_zero_after_hardly_any_update_are_no_proof():
    """YOLO, five epochs, batch 4, nbs 64: eight updates in all. Too few is the likeliest reason, and comes first."""
    settings = events.Settings(at=0.5, source="ultralytics", values={"device": "cpu", "batch": 4, "nbs": 64})
    nothing = validations(every=1, fitness=[0.0] * 5)
    found = findings_of([*started(), settings, *losses(*[3.0, 2.9] * 4), *nothing, *ended(0, last_step=8)])
    made = next(f for f in found if f.rule == "metrics-all-zero" and f.severity == "fatal")
    assert made.confidence == "possible"
    assert "8 steps are few" in made.message
    assert made.remedies[0].startswith("train longer: 8 steps are very few")
    assert "8 optimizer steps in total: with batch=4 and nbs=64, each step accumulates 16 batches" in made.evidence


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
    history = [msgspec.structs.replace(first, tuning=rule_config.parse(settings)), *rest, *losses(*[0.0] * 30)]
    assert [(f.rule, f.severity, f.step) for f in findings_of(history)] == said


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("loss-al-zero=off", "loss-all-zero"),
        ("loss-all-zero.step=3", "steps"),
        ("loss-all-zero=loud", "off, note, warn, fatal"),
        ("loss-all-zero.steps=many", "ID.LIMIT=NUMBER"),
        ("loss-all-zero", "ID=off"),
    ],
)
def test_wrong_setting_names_the_right_one(setting, message):
    with pytest.raises(UsageError) as caught:
        rule_config.parse([setting])
    assert message in caught.value.next_step


def test_all_zero_is_found_within_twenty_steps():
    """The first field report's failure is known after 20 steps, not after 43 minutes."""
    found = findings_of([*started(), *losses(*[0.0] * 25)])
    assert [(f.rule, f.step) for f in found] == [("loss-all-zero", 20)]


def test_findings_are_frozen():
    finding = Finding(rule="x", severity="note", message="m")
    with pytest.raises(AttributeError):
        finding.message = "other"
