"""Do the training's own first steps show anything that speaks against it?

**What it asks.** The command is run for some twenty steps, in a scratch copy of its folder, and the rules that watch a run judge
them: losses that are exactly 0, a part of the loss that is, gradients that are missing, zero or not finite, weights that the optimizer does not hold;
and what an end before the first step was about.

**Why.** The first field report trained for hours with box and dfl losses of exactly 0. That shows in ten steps. So does an import that
fails on the other machine, a missing operator, a label file in the wrong place.

**What to do.** What the finding says; `holdfast rules` has a page for each rule.

The scratch holds copies of small files and links to large ones and to folders full of data (see docs/dry_run.md). Trackers are off. Files
of yours are not written to, as far as this system lets that be prevented, which is told here; so is what the training was kept from
writing outside of its folder.

**When it stays silent.** Where no step is made in time, or none can be seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from holdfast.preflight.case_dry_runs import experiments, on_cpu, on_mps, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, explain_no_steps, get_dry_run, kept_from
from holdfast.preflight.dry_run.findings import find_problems
from holdfast.schema import events

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

ID = "learning-first-steps"
MAX_NAMED = 5


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run(context)
    ended = died(dry_run)
    if ended and dry_run.kept_from:
        if not dry_run.steps:
            raise NotChecked(explain_no_steps(dry_run))
        # What ended it is the dry run's own doing; its steps count all the same.
        dry_run, ended = replace(dry_run, code=None), False
        if not find_problems(dry_run):
            raise NotChecked(f"it ended after {dry_run.steps} steps, {kept_from(dry_run)}")
    findings = [_as_ours(found) for found in find_problems(dry_run) if found.severity != "note"]
    if not dry_run.steps and not dry_run.steps_elsewhere and not (ended or findings):
        raise NotChecked(explain_no_steps(dry_run))
    if ended and not any(found.severity == "fatal" for found in findings):
        findings.append(_ended(dry_run))
    return Answer(_message(dry_run), (*findings, *_files(dry_run)))


def died(dry_run: DryRunResult) -> bool:
    """By itself, and not of what was done to it."""
    return dry_run.ended_alone and bool(dry_run.code) and not _experimenting(dry_run)


def _experimenting(dry_run: DryRunResult) -> bool:
    """Whether it may have died of what was done to it."""
    told = dry_run.one("experiments")
    return told is not None and bool(told["possible"])


def _as_ours(found: Finding) -> Finding:
    message = found.message if found.message.endswith((".", "!", "?")) else f"{found.message}."
    return msgspec.structs.replace(
        found, rule=ID, message=message, evidence=[f"the rule {found.rule}", *found.evidence]
    )


def _ended(dry_run: DryRunResult) -> Finding:
    when = f"after {dry_run.steps} steps" if dry_run.steps else "before its first step"
    last = f": {dry_run.words[-1][:300]}" if dry_run.words else ""
    return finding(
        ID,
        "fatal",
        f"It ends {when}, with exit code {dry_run.code}{last}.",
        evidence=list(dry_run.words[-MAX_NAMED:]),
        remedies=["mend what it says, and check again"],
    )


def _files(dry_run: DryRunResult) -> list[Finding]:
    told = []
    if dry_run.changed:
        told.append(
            finding(
                ID,
                "note",
                f"Files in its folder changed during the dry run: {_named(dry_run.changed)}.",
                evidence=list(dry_run.changed),
                remedies=["if nothing else runs there, it writes without Python, to a path of its own: look at them"],
                confidence="possible",
            )
        )
    if dry_run.made:
        told.append(
            finding(ID, "note", f"It made files outside of its folder: {_named(dry_run.made)}.", evidence=dry_run.made)
        )
    if dry_run.refused_paths:
        told.append(
            finding(
                ID,
                "note",
                f"It was kept from writing outside of its folder: {_named(dry_run.refused_paths)}.",
                evidence=dry_run.refused_paths,
                remedies=["a real run will write there: give it a place of its own if that is not meant"],
            )
        )
    if dry_run.unconfined:
        told.append(
            finding(
                ID,
                "note",
                "Not prevented on this system: that a library or another program changes files of yours"
                f" ({dry_run.unconfined}); what Python itself writes is."
                + (f" It used: {_named(dry_run.external_writers)}." if dry_run.external_writers else ""),
                evidence=dry_run.external_writers,
            )
        )
    elif died(dry_run) and not dry_run.kept_from:
        told.append(
            finding(
                ID,
                "note",
                "It could not write outside of its folder: if that is what it failed of, check again with --no-confine.",
                evidence=[f"exit code {dry_run.code}, and no write that was refused is known"],
            )
        )
    return told


def _named(paths: list[str] | tuple[str, ...] | object) -> str:
    names = list(paths) if isinstance(paths, (list, tuple)) else []
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _message(dry_run: DryRunResult) -> str:
    losses = [line["loss"] for line in dry_run.of("dry-run-step") if line["phase"] in ("first", "more")]
    seen = [f"{float(loss):.4g}" for loss in losses if loss is not None]
    loss_curve = f", losses {', '.join(seen[:3])}{', ...' if len(seen) > 3 else ''}" if seen else ""
    kept = "" if dry_run.changed else "; nothing in your folder was changed"
    return f"{dry_run.steps or dry_run.steps_elsewhere} steps in {dry_run.seconds:.0f} s{loss_curve}{kept}"


_PARTS = {"box_loss": 0.0, "cls_loss": 3.4, "dfl_loss": 0.0}
_UNMATCHED = tuple(
    events.Step(at=float(n), step=n, seconds=0.1, loss=3.4, parts=dict(_PARTS), instances=8) for n in range(1, 16)
)

CHECK = Check(
    id=ID,
    kind="learning",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("nothing is wrong", on_cpu(recorded_dry_run(experiments(False, "no DataLoader"))), "passed"),
        Case(
            "the first field report: no box loss", on_mps(recorded_dry_run(experiments(), events=_UNMATCHED)), "fatal"
        ),
        Case("all losses are 0", on_cpu(recorded_dry_run(losses=[0.0] * 27)), "fatal"),
        Case(
            "it ends before its first step",
            on_cpu(
                recorded_dry_run(losses=(), code=1, words=("Traceback (most recent call last):", "KeyError: 'label'"))
            ),
            "fatal",
        ),
        Case("it never steps", on_cpu(recorded_dry_run(losses=(), code=None)), "not checked"),
        Case(
            "its steps are made in processes that it starts",
            on_cpu(recorded_dry_run(losses=(), events=(events.Step(at=1.0, step=1, seconds=0.1, loss=2.0),))),
            "passed",
        ),
        Case("it is no training", on_cpu(recorded_dry_run(losses=(), code=0)), "not checked"),
        Case(
            "it makes a file elsewhere",
            on_cpu(recorded_dry_run({"event": "file", "what": "made", "path": "/data/log.txt", "how": "open"})),
            "passed",
        ),
        Case(
            "it ends because a file of yours would change",
            on_cpu(
                recorded_dry_run(
                    {"event": "file", "what": "refused", "path": "/data/log.txt", "how": "open"}, losses=(), code=1
                )
            ),
            "not checked",
        ),
    ),
)
