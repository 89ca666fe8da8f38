"""Matching the output of a training against `Rule.words`.

Text in, rule ids out: used for the output of a running training and for logs of trainings that were not supervised.
"""

from __future__ import annotations

import re
from functools import cache

from holdfast.diagnosis.rules import all_rules

_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|.")
_SPECIAL = frozenset("?*+.^$|()[]{}\\")


def rules_matching(line: str) -> list[str]:
    """Return the ids of the rules whose `words` match this line."""
    return [rule for rule, pattern in _patterns() if pattern.search(line)]


@cache
def needles() -> tuple[bytes, ...]:
    """Return plain texts in lower case: a line that contains none of them matches no rule. They are fast to search for."""
    return tuple(sorted({find_needle(word).lower().encode() for rule in all_rules() for word in rule.words}))


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(rule.id, re.compile("|".join(f"(?:{word})" for word in rule.words))) for rule in all_rules() if rule.words]


def find_needle(word: str) -> str:
    """Return the longest plain text that every match of the regular expression contains; empty if it is hard to determine."""
    body = word[4:-1] if word.startswith("(?i:") and word.endswith(")") else word
    runs, depth = [""], 0
    for part in _PART.findall(body):
        depth += (part == "(") - (part == ")")
        if depth == 0 and part == "|":
            return ""
        if depth == 0 and _is_plain(part):
            runs[-1] += part[-1]
            continue
        if part in ("?", "*") or part.startswith("{"):  # the character before it is optional
            runs[-1] = runs[-1][:-1]
        runs.append("")
    return max(runs, key=len)


def _is_plain(part: str) -> bool:
    if part.startswith("\\"):
        return not part[1:].isalnum()
    return len(part) == 1 and part not in _SPECIAL
