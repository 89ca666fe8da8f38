"""The ladder as docs/remedies.md."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.remedies.registry import CORRUPTING, REMEDIES, SLOW_DATA, SWAPPING

if TYPE_CHECKING:
    from holdfast.remedies.step import RemedyStep

_HEAD = """# The ladder

Made from the remedies themselves by `make docs`; a test checks that it is up to date.

When an attempt ends, Holdfast looks for the least change that answers the finding: it asks one rung after the other, and the first
that applies, changes something and was not tried before is taken. Every change is told with what it was, why it is made and
what it costs. What a plan's policy forbids (`never_change`, `may_change`, `devices`) is left out.

Settings of Ultralytics are set from outside, whatever the command or script says. Other commands are told by their own flags, where those
are on the command line and plain (`--batch-size 16`, `-b 16`, `batch=16`, `--gradient_accumulation_steps 4`), or named in the plan's
`flags`.

A finding that is not here has no remedy but a person's. So have those about learning on a CPU: there the training itself is at fault.
"""


def as_markdown() -> str:
    ladders = {
        **REMEDIES,
        "epoch-time-blowup, where the machine swapped": SWAPPING,
        "epoch-time-blowup, where it waited for data": SLOW_DATA,
    }
    parts = [_HEAD, "## Which rungs answer what", "", "| finding | rungs, in their order |", "|---|---|"]
    parts += [f"| {_cause(cause)} | {', '.join(_ids(rungs))} |" for cause, rungs in ladders.items()]
    parts += [
        "",
        "\\* The state is spoiled: it goes on from what was saved before, or starts over.",
        "",
        "On CUDA, `next-device` comes last for what is not finite or diverges: overflow and learning rates explain that better.",
        "",
        "## The rungs",
        "",
        "| rung | what it does | what it costs |",
        "|---|---|---|",
    ]
    rungs = {remedy_step.id: remedy_step for steps in reversed(ladders.values()) for remedy_step in reversed(steps)}
    named = {
        remedy_step.id: remedy_step
        for steps in REMEDIES.values()
        for remedy_step in steps
        if not remedy_step.conditional
    }
    parts += [f"| {id_} | {named.get(id_, rungs[id_]).summary} | {rungs[id_].costs} |" for id_ in sorted(rungs)]
    return "\n".join([*parts, ""])


def _cause(cause: str) -> str:
    id_, comma, rest = cause.partition(",")
    spoils = r" \*" if cause in CORRUPTING else ""
    return f"[{id_}](rules.md#{id_}){comma}{rest}{spoils}"


def _ids(rungs: tuple[RemedyStep, ...]) -> list[str]:
    groups = [
        (when, [remedy_step.id for remedy_step in group])
        for when, group in groupby(rungs, key=lambda remedy_step: remedy_step.conditional)
    ]
    return [", ".join(ids) + (f" ({when})" if when else "") for when, ids in groups]
