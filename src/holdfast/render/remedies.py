"""docs/remedies.md, generated from the remedies."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import all_rules
from holdfast.frameworks import all_frameworks, by_name
from holdfast.remedies.registry import CONDITIONS, all_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD = """# Remedies

Generated from the code by `make docs`.

A remedy is what Holdfast does about a problem before it restarts training. Each execution of the training command is an *attempt*, and a problem that
a [rule](rules.md) detects is a *finding*. After a failed attempt, Holdfast checks the remedies for the finding in order and uses the first one that

- applies to this run and device,
- is allowed by the `[policy]` of the plan (`never_change`, `may_change`, `devices`),
- and has not already made the same change in this run.

A remedy that changes a setting gradually, such as `micro-batch` or `half-rate`, can therefore be used more than once. Two remedies change nothing and only restart
training: `as-it-is`, in case the failure was random, and `fresh-process`, which frees memory. Each change is reported with the old value, the reason and the cost.

For the findings {restarting}, Holdfast does not wait for a failure. If the run takes snapshots,
Holdfast requests one and restarts training from it with the remedy (a planned restart).

Holdfast overrides the settings of {frameworks} when training starts; you do not need to change the command or the script. For other commands, it changes flags on the command line if
they have a simple form (`--batch-size 16`, `-b 16`, `batch=16`, `--gradient_accumulation_steps 4`) or are named in `[flags]` of the plan.

Findings that are not listed here have no automatic remedy. `next-device` does not apply if training already runs on the CPU. A finding whose only remedy is
`next-device` then has no remedy: the cause is in the code, the data or the settings.
"""


_CAUSES = {"swap": "if the machine swapped", "data": "if training waited for data"}
"""The causes in `remedies_by_cause` of rules, as text."""


def as_markdown() -> str:
    rules = all_rules()
    *others, last = (f"`{rule.id}`" for rule in rules if rule.restarts_while_running)
    titles = " and ".join(framework.title for framework in all_frameworks() if framework.overrides_settings)
    parts = [_HEAD.format(restarting=f"{', '.join(others)} and {last}", frameworks=titles)]
    parts += ["## Remedies for each finding", "", "| finding | remedies, in order |", "|---|---|"]
    for rule in rules:
        mark = r" \*" if rule.corrupts_state else ""
        rows = {"": rule.remedies, **{f", {_CAUSES[cause]}": ids for cause, ids in rule.remedies_by_cause.items()}}
        parts += [
            f"| [{rule.id}](rules.md#{rule.id}){when}{mark} | {', '.join(_group(ids))} |"
            for when, ids in rows.items()
            if ids
        ]
    parts += [
        "",
        "\\* The state of the attempt is corrupt: training resumes from a state that was saved before the problem began, or starts over.",
        "",
        "On CUDA, `next-device` comes last for losses or gradients that diverge or are not finite: there, overflow or the learning rate is a more likely cause than the device.",
        "",
        "## All remedies",
        "",
        "| remedy | effect | cost |",
        "|---|---|---|",
    ]
    for id_ in sorted({id_ for _, id_ in all_steps()}):
        steps = [step for (_, name), step in sorted(all_steps().items()) if name == id_]  # the general step first
        only = f" ({by_name(steps[0].framework).title})" if steps[0].framework else ""
        effect = " ".join(dict.fromkeys(step.summary for step in steps))
        parts.append(f"| {id_}{only} | {effect} | {'; '.join(dict.fromkeys(step.costs for step in steps))} |")
    return "\n".join([*parts, ""])


def _group(ids: Sequence[str]) -> Iterator[str]:
    for condition, group in groupby((id_.partition("@") for id_ in ids), key=lambda parts: parts[2]):
        steps = ", ".join(step for step, *_ in group)
        yield f"({CONDITIONS[condition].text}: {steps})" if condition else steps
