"""The rules as a list, as pages, and as docs/rules.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule_config import rule_named
from holdfast.diagnosis.rules import all_rules
from holdfast.render.console import print_json, print_line, print_lines

if TYPE_CHECKING:
    from holdfast.diagnosis.rule import Rule


def headline(rule: Rule) -> str:
    return rule.page.strip().partition("\n")[0]


def print_rules(rule_id: str | None, *, as_json: bool) -> None:
    chosen = all_rules() if rule_id is None else (rule_named(rule_id),)
    if as_json:
        rules = [
            {
                "id": rule.id,
                "kind": rule.kind,
                "description": headline(rule),
                "limits": rule.limits,
                "page": rule.page.strip(),
            }
            for rule in chosen
        ]
        print_json(rules)
    elif rule_id is not None:
        print_lines([rule_id, "", *chosen[0].page.strip().replace("**", "").split("\n")])
        if chosen[0].limits:
            print_lines(["", f"Limits, set with --rule {rule_id}.NAME=VALUE: {limits_of(chosen[0])}."])
    else:
        width = max(len(rule.id) for rule in chosen) + 2
        for rule in chosen:
            print_line(f"{rule.id:{width}}{headline(rule)}")


def as_markdown() -> str:
    """Return docs/rules.md, made from the rules' docstrings."""
    parts = ["# Rules", "", "Generated from the rules by `make docs`.", ""]
    for rule in all_rules():
        parts += [f"## {rule.id}", "", f"*{rule.kind}*", "", rule.page.strip(), ""]
        if rule.limits:
            parts += [f"Limits: {limits_of(rule)}.", ""]
        parts += ["Test cases:", ""]
        parts += [f"- {case.description}: {case.expected or 'silent'}" for case in rule.cases]
        parts.append("")
    return "\n".join(parts)


def limits_of(rule: Rule) -> str:
    return ", ".join(f"{name} ({value:g})" for name, value in rule.limits.items())
