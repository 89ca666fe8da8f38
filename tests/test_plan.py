"""Plans: kept as TOML, and refused with a sentence where they make no sense."""

from __future__ import annotations

import pytest

from holdfast.words.errors import PlanInvalid
from holdfast.words.plan import Budget, HangSettings, Plan, from_toml, to_toml


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
    ("settings", "says"),
    [
        ({"command": []}, "no command"),
        ({"budget": Budget(attempts=0)}, "no attempt"),
        ({"resume_with": "--resume {checkpoint}"}, "--checkpoint"),
    ],
)
def test_senseless_plan_says_what_to_do(settings, says):
    with pytest.raises(PlanInvalid) as caught:
        Plan(**{"command": ["x"], "cwd": "/", **settings})
    assert says in str(caught.value)
    assert caught.value.next_step


def test_broken_toml_is_named():
    with pytest.raises(PlanInvalid, match="cannot be read"):
        from_toml("command = [")
    with pytest.raises(PlanInvalid, match=r"budget.attempts"):
        from_toml('command = ["x"]\ncwd = "/"\n[budget]\nattempts = "three"')
