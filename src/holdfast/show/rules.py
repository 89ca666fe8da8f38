"""The rules as a list, as pages, and as docs/rules.md."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import msgspec

from holdfast.judge.rules import all_rules, by_id
from holdfast.words.errors import UsageError

if TYPE_CHECKING:
    from holdfast.judge.rule import Rule


def headline(rule: Rule) -> str:
    return rule.page.strip().partition("\n")[0]


def print_rules(asked: str | None, *, as_json: bool) -> None:
    chosen = all_rules() if asked is None else (_one(asked),)
    if as_json:
        told = [
            {"id": rule.id, "kind": rule.kind, "says": headline(rule), "page": rule.page.strip()} for rule in chosen
        ]
        print(msgspec.json.encode(told).decode())
    elif asked is not None:
        print(f"{asked}\n\n{chosen[0].page.strip().replace('**', '')}")
    else:
        for rule in chosen:
            print(f"{rule.id:24}{headline(rule)}")


def as_markdown() -> str:
    """docs/rules.md, from the rules' own pages."""
    parts = ["# Rules", "", "Made from the rules themselves by `make docs`; a test checks that it is up to date.", ""]
    for rule in all_rules():
        parts += [f"## {rule.id}", "", f"*{rule.kind}*", "", rule.page.strip(), "", "Its cases:", ""]
        parts += [f"- {case.says}: {case.expected or 'silent'}" for case in rule.cases]
        parts.append("")
    return "\n".join(parts)


def _one(asked: str) -> Rule:
    rules = by_id()
    if asked not in rules:
        near = difflib.get_close_matches(asked, rules, n=3)
        raise UsageError(
            f"There is no rule {asked!r}.",
            next_step=f"did you mean {', '.join(near)}?" if near else "holdfast rules lists them all",
        )
    return rules[asked]
