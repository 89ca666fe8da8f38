"""docs/remedies.md, generated from the remedies."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.remedies.registry import CORRUPTING, REMEDIES, SLOW_DATA, SWAPPING

if TYPE_CHECKING:
    from holdfast.remedies.step import RemedyStep

_HEAD = """# Remedies

Generated from the code by `make docs`.

A remedy is what Holdfast does about a problem before it restarts training. Each execution of the training command is an *attempt*, and a problem that
a [rule](rules.md) detects is a *finding*. After a failed attempt, Holdfast checks the remedies for the finding in order and uses the first one that

- applies to this run and device,
- is allowed by the `[policy]` of the plan (`never_change`, `may_change`, `devices`),
- and has not already made the same change in this run.

A remedy that changes a setting gradually, such as `micro-batch` or `half-rate`, can therefore be used more than once. Two remedies change nothing and only restart
training: `as-it-is`, in case the failure was random, and `fresh-process`, which frees memory. Each change is reported with the old value, the reason and the cost.

For the findings `driver-memory-bloat`, `epoch-time-blowup`, `nms-cut-short` and `validation-memory-spike`, Holdfast does not wait for a failure. If the run takes snapshots,
Holdfast requests one and restarts training from it with the remedy (a planned restart).

Holdfast overrides Ultralytics settings when training starts; you do not need to change the command or the script. For other commands, it changes flags on the command line if
they have a simple form (`--batch-size 16`, `-b 16`, `batch=16`, `--gradient_accumulation_steps 4`) or are named in `[flags]` of the plan.

Findings that are not listed here have no automatic remedy. `next-device` does not apply if training already runs on the CPU. A finding whose only remedy is
`next-device` then has no remedy: the cause is in the code, the data or the settings.
"""


def as_markdown() -> str:
    remedies = {
        **REMEDIES,
        "epoch-time-blowup, if the machine swapped": SWAPPING,
        "epoch-time-blowup, if training waited for data": SLOW_DATA,
    }
    parts = [_HEAD, "## Remedies for each finding", "", "| finding | remedies, in order |", "|---|---|"]
    parts += [f"| {_cause(cause)} | {', '.join(_ids(steps))} |" for cause, steps in remedies.items()]
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
    return [f"({when}: {', '.join(ids)})" if when else ", ".join(ids) for when, ids in groups]
