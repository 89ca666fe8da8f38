"""What a user sets for rules: `loss-constant=off`, `overfitting=note`, `loss-all-zero.steps=50`."""

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
    """The settings as the plan keeps them. Raises UsageError that names the nearest valid word."""
    tuning: Tuning = {}
    for setting in settings:
        left, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--rule {setting} sets nothing.", next_step=HOW)
        name, _, limit = left.partition(".")
        rule = rule_named(name)
        values = tuning.setdefault(rule.id, {})
        if limit:
            values[_known(limit, rule.limits, f"limit of {rule.id}")] = _number(setting, value)
        else:
            values["severity"] = _known(value, SEVERITIES, "severity")
    return tuning


def rule_named(name: str) -> Rule:
    return by_id()[_known(name, by_id(), "rule")]


def _known(word: str, words: Iterable[str], what: str) -> str:
    known = list(words)
    if word in known:
        return word
    near = difflib.get_close_matches(word, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else ""
    if not near:
        hint = f"it is one of {', '.join(known)}" if len(known) in range(1, 9) else "holdfast rules lists them all"
        hint = hint if known else "this rule has no limits to set; it can be switched off or capped"
    raise UsageError(f"There is no {what} {word!r}.", next_step=hint)


def _number(setting: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise UsageError(f"--rule {setting}: {value!r} is no number that a limit can be.", next_step=HOW)
    return number
