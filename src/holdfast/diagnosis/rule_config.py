"""Rule settings of the user: `loss-constant=off`, `overfitting=note`, `loss-all-zero.steps=50`."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id
from holdfast.schema.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.diagnosis.rule import Rule

Tuning = dict[str, dict[str, float | str]]
SEVERITIES = ("off", "note", "warn", "fatal")
HOW = "write --rule ID=off|note|warn, or --rule ID.LIMIT=NUMBER"


def parse(settings: Iterable[str]) -> Tuning:
    """Parse the settings into the form that the plan stores. Raise a UsageError that suggests the nearest valid word."""
    tuning: Tuning = {}
    for setting in settings:
        left, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--rule {setting} has no value.", next_step=HOW)
        name, _, limit = left.partition(".")
        rule = rule_named(name)
        values = tuning.setdefault(rule.id, {})
        if limit:
            values[_check_word(limit, rule.limits, f"limit of {rule.id}")] = _parse_number(setting, value)
        else:
            values["severity"] = _check_word(value, SEVERITIES, "severity")
    return tuning


def rule_named(name: str) -> Rule:
    return by_id()[_check_word(name, by_id(), "rule")]


def _check_word(word: str, words: Iterable[str], what: str) -> str:
    valid = list(words)
    if word in valid:
        return word
    matches = difflib.get_close_matches(word, valid, n=3)
    hint = f"did you mean {', '.join(matches)}?" if matches else ""
    if not matches:
        hint = f"use one of {', '.join(valid)}" if len(valid) in range(1, 9) else "`holdfast rules` lists all of them"
        hint = hint if valid else "this rule has no limits; it can be disabled or limited to a severity"
    raise UsageError(f"There is no {what} {word!r}.", next_step=hint)


def _parse_number(setting: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise UsageError(f"--rule {setting}: {value!r} is not a valid limit.", next_step=HOW)
    return number
