"""The rules as a list, as pages, and as docs/rules.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule_config import rule_named
from holdfast.diagnosis.rules import all_rules
from holdfast.render.console import print_json, print_line, print_lines

if TYPE_CHECKING:
    from holdfast.diagnosis.rule import Rule

INTRODUCTION = """\
# Rules

Generated from the rules by `make docs`.

Each rule detects one kind of problem in a training run. If it detects the problem, it reports a *finding*: a message,
the evidence for it, and what you can do. `holdfast rules` lists the rules, and `holdfast rules ID` prints one of the
sections below.

A finding has one of three severities:

| severity | meaning |
|---|---|
| `note` | For your information. No action is needed, or the behavior may be intentional. |
| `warn` | Probably a problem. The run continues, but Holdfast may restart it with changed settings (see docs/remedies.md). |
| `fatal` | A failure. If the command is still running and the rule is in the `learning` or `resources` category, Holdfast stops the command, unless you use `--observe-only` or `--on-finding warn`. |

Each rule belongs to one of these categories:

| category | what the rules detect |
|---|---|
| exit | why the process ended or crashed |
| learning | whether the model learns: losses, gradients, weights, learning rates and scores |
| proof | whether the result is what it seems to be: checkpoints, completed steps and the final validation |
| resources | memory, disk space, speed and hangs |
| watching | whether Holdfast itself can observe and save the run |

Other terms:

- An *attempt* is one execution of your command. After a failure, Holdfast can start the next attempt, up to
  `--max-attempts`.
- The *probe* is the code that Holdfast loads into your Python process to record steps, losses, gradients and weights.
- *Limits* are the numbers that a rule uses, such as the number of steps it waits for. Where a section lists limits,
  it shows their default values. Set a limit with `--rule ID.NAME=VALUE`, for example `--rule loss-all-zero.steps=50`.
- To disable a rule, use `--rule ID=off`. To limit its severity, use `--rule ID=note` or `--rule ID=warn`.
- *Examples* are the test cases for the rule, each with the severity that the rule reports.
"""


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
    parts = [INTRODUCTION]
    for rule in all_rules():
        parts += [f"## {rule.id}", "", f"Category: {rule.kind}", "", rule.page.strip(), ""]
        if rule.limits:
            parts += [f"Limits: {limits_of(rule)}.", ""]
        parts += ["Examples (situation: severity):", ""]
        parts += [f"- {case.description}: {case.expected or 'not reported'}" for case in rule.cases()]
        parts.append("")
    return "\n".join(parts)


def limits_of(rule: Rule) -> str:
    return ", ".join(f"{name} ({value:g})" for name, value in rule.limits.items())
