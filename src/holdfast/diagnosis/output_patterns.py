"""Lines of output that rules want to be told of: `Rule.words`, looked for in what a training prints.

Pure text in, rule ids out: used on the output of a living training and on logs of trainings that nobody watched.
"""

from __future__ import annotations

import re
from functools import cache

from holdfast.diagnosis.rules import all_rules

_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|.")
_SPECIAL = frozenset("?*+.^$|()[]{}\\")


def rules_speaking_of(line: str) -> list[str]:
    """The ids of the rules that want to be told of this line."""
    return [rule for rule, pattern in _patterns() if pattern.search(line)]


@cache
def needles() -> tuple[bytes, ...]:
    """Plain text in lower case: a line that holds none of it is of no interest to any rule. To look for plain text is
    several times faster than any pattern, and output may come by the hundred megabytes.
    """
    return tuple(sorted({needle_in(word).lower().encode() for rule in all_rules() for word in rule.words}))


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(rule.id, re.compile("|".join(f"(?:{word})" for word in rule.words))) for rule in all_rules() if rule.words]


def needle_in(word: str) -> str:
    """The longest plain text that is in every line which the regular expression matches. Where that is not plain to see,
    it is empty: then every line is looked at.
    """
    body = word[4:-1] if word.startswith("(?i:") and word.endswith(")") else word
    runs, depth = [""], 0
    for part in _PART.findall(body):
        depth += (part == "(") - (part == ")")
        if depth == 0 and part == "|":
            return ""
        if depth == 0 and _is_plain(part):
            runs[-1] += part[-1]
            continue
        if part in ("?", "*") or part.startswith("{"):  # what it stands behind need not be there
            runs[-1] = runs[-1][:-1]
        runs.append("")
    return max(runs, key=len)


def _is_plain(part: str) -> bool:
    if part.startswith("\\"):
        return not part[1:].isalnum()
    return len(part) == 1 and part not in _SPECIAL
