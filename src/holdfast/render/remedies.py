"""docs/remedies.md, generated from the remedies."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.remedies.registry import CORRUPTING, REMEDIES, SLOW_DATA, SWAPPING

if TYPE_CHECKING:
    from holdfast.remedies.step import RemedyStep

_HEAD = """# Remedies

Generated from the code by `make docs`.

After a failed attempt, Holdfast makes the smallest change that addresses the finding. It tries the remedies of the finding in order and uses the
first one that applies, changes something and was not used before. Each change is reported with the old value, the reason and the cost. Changes that
the plan's policy forbids (`never_change`, `may_change`, `devices`) are skipped.

Holdfast overrides Ultralytics settings from outside, regardless of the command or script. For other commands it changes their flags if these
are on the command line in a simple form (`--batch-size 16`, `-b 16`, `batch=16`, `--gradient_accumulation_steps 4`) or named in the plan's
`flags`.

Findings not listed here have no automatic remedy, nor have learning failures on a CPU: there the training itself is the cause.
"""


def as_markdown() -> str:
    remedies = {
        **REMEDIES,
        "epoch-time-blowup, if the machine swapped": SWAPPING,
        "epoch-time-blowup, if it waited for data": SLOW_DATA,
    }
    parts = [_HEAD, "## Remedies for each finding", "", "| finding | remedies, in order |", "|---|---|"]
    parts += [f"| {_cause(cause)} | {', '.join(_ids(steps))} |" for cause, steps in remedies.items()]
    parts += [
        "",
        "\\* The state is corrupt: the training resumes from an earlier checkpoint, or starts over.",
        "",
        "On CUDA, `next-device` comes last for non-finite or diverging losses: overflow and learning rates are more likely causes.",
        "",
        "## All remedies",
        "",
        "| remedy | effect | cost |",
        "|---|---|---|",
    ]
    by_id = {remedy_step.id: remedy_step for steps in reversed(remedies.values()) for remedy_step in reversed(steps)}
    unconditional = {
        remedy_step.id: remedy_step
        for steps in REMEDIES.values()
        for remedy_step in steps
        if not remedy_step.conditional
    }
    parts += [f"| {id_} | {unconditional.get(id_, by_id[id_]).summary} | {by_id[id_].costs} |" for id_ in sorted(by_id)]
    return "\n".join([*parts, ""])


def _cause(cause: str) -> str:
    id_, comma, rest = cause.partition(",")
    corrupting = r" \*" if cause in CORRUPTING else ""
    return f"[{id_}](rules.md#{id_}){comma}{rest}{corrupting}"


def _ids(steps: tuple[RemedyStep, ...]) -> list[str]:
    groups = [
        (when, [remedy_step.id for remedy_step in group])
        for when, group in groupby(steps, key=lambda remedy_step: remedy_step.conditional)
    ]
    return [", ".join(ids) + (f" ({when})" if when else "") for when, ids in groups]
