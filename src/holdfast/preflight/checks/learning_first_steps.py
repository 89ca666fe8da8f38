"""Do the first training steps show a problem?

**What it checks.** Runs the command, usually for 27 to 101 optimizer steps, in a scratch copy of its working directory, and applies some
of the rules that `holdfast run` uses (docs/rules.md). They detect, for example, losses or loss components that are exactly 0, gradients
that are missing, zero or not finite, and weights that are not in the optimizer. If the script crashes before its first step, the check
reports why.

**Why.** One user trained for hours with box and dfl losses of exactly 0. A few steps are enough to detect that. They are also enough to
detect an import that fails on the training machine, a missing operator, or a label file in the wrong place.

**What to do.** Follow the advice in the finding. `holdfast rules ID` explains each rule.

**What happens to your files.** The scratch copy contains copies of small files, and links to large files and to folders with many files
(see docs/dry_run.md). Experiment trackers are off. Holdfast prevents writes to your files where the operating system supports this. The
check reports which writes outside the scratch copy were blocked, and whether some writes could not be prevented.

**When it is not checked.** The result is `not checked` if no step is completed in time, or if no step can be observed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from holdfast.preflight.case_dry_runs import experiments, on_cpu, on_mps
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, fatal, note
from holdfast.preflight.dry_run.cache import SECONDS, explain_blocked_write, explain_no_steps, get_dry_run
from holdfast.preflight.dry_run.findings import find_problems
from holdfast.schema import events

if TYPE_CHECKING:
    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

ID = "learning-first-steps"
MAX_NAMED = 5


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run(context)
    ended = crashed(dry_run)
    if ended and dry_run.blocked_path:
        if not dry_run.steps:
            raise NotChecked(explain_no_steps(dry_run))
        # The dry run itself caused the crash; its steps are still valid.
        dry_run, ended = replace(dry_run, code=None), False
        if not find_problems(dry_run):
            raise NotChecked(f"the script stopped after {dry_run.steps} steps, {explain_blocked_write(dry_run)}")
    findings = [_convert(found) for found in find_problems(dry_run) if found.severity != "note"]
    if not dry_run.steps and not dry_run.steps_elsewhere and not (ended or findings):
        raise NotChecked(explain_no_steps(dry_run))
    if ended and not any(found.severity == "fatal" for found in findings):
        findings.append(_report_exit(dry_run))
    return Answer(_message(dry_run), (*findings, *_report_files(dry_run)))


def crashed(dry_run: DryRunResult) -> bool:
    """Return whether the training script crashed on its own, not because of an experiment of the dry run."""
    return dry_run.ended_alone and bool(dry_run.code) and not _may_have_caused_it(dry_run)


def _may_have_caused_it(dry_run: DryRunResult) -> bool:
    """Return whether an experiment of the dry run may have caused the crash."""
    event = dry_run.first("experiments")
    return event is not None and bool(event["possible"])


def _convert(found: Finding) -> Finding:
    message = found.message if found.message.endswith((".", "!", "?")) else f"{found.message}."
    return msgspec.structs.replace(
        found, rule=ID, message=message, evidence=[f"the rule {found.rule}", *found.evidence]
    )


def _report_exit(dry_run: DryRunResult) -> Finding:
    when = f"after {dry_run.steps} steps" if dry_run.steps else "before its first step"
    last = f": {dry_run.last_lines[-1][:300]}" if dry_run.last_lines else ""
    return fatal(
        f"The script crashes {when}, with exit status {dry_run.code}{last}.",
        evidence=list(dry_run.last_lines[-MAX_NAMED:]),
        remedies=["fix this error, and check again"],
    )


def _report_files(dry_run: DryRunResult) -> list[Finding]:
    notes = []
    if dry_run.changed:
        notes.append(
            note(
                f"Files in the working directory changed during the dry run: {_format_paths(dry_run.changed)}.",
                evidence=list(dry_run.changed),
                remedies=[
                    "check these files: unless a different program changed them, native code in the script writes to an absolute path"
                ],
                confidence="possible",
            )
        )
    if dry_run.created:
        notes.append(
            note(
                f"The script created files outside its working directory: {_format_paths(dry_run.created)}.",
                evidence=dry_run.created,
            )
        )
    if dry_run.refused_paths:
        notes.append(
            note(
                f"Writes outside the scratch copy were blocked: {_format_paths(dry_run.refused_paths)}.",
                evidence=dry_run.refused_paths,
                remedies=["a real run will write there: change the path if this is not intended"],
            )
        )
    if dry_run.unconfined:
        notes.append(
            note(
                "On this system, writes to your files by native libraries and other programs were not prevented"
                f" ({dry_run.unconfined}); writes by Python code were."
                + (f" The script used: {_format_paths(dry_run.external_writers)}." if dry_run.external_writers else ""),
                evidence=dry_run.external_writers,
            )
        )
    elif crashed(dry_run) and not dry_run.blocked_path:
        notes.append(
            note(
                "The script could not write outside the scratch copy. If that is the cause of the failure, check again with --no-confine.",
                evidence=[f"exit status {dry_run.code}, and no blocked write was recorded"],
            )
        )
    return notes


def _format_paths(paths: list[str] | tuple[str, ...] | object) -> str:
    names = list(paths) if isinstance(paths, (list, tuple)) else []
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _message(dry_run: DryRunResult) -> str:
    losses = [line["loss"] for line in dry_run.select("dry-run-step") if line["phase"] in ("first", "more")]
    seen = [f"{float(loss):.4g}" for loss in losses if loss is not None]
    loss_curve = f", losses {', '.join(seen[:3])}{', ...' if len(seen) > 3 else ''}" if seen else ""
    kept = "" if dry_run.changed else "; no file in your working directory changed"
    return f"{dry_run.steps or dry_run.steps_elsewhere} steps in {dry_run.seconds:.0f} s{loss_curve}{kept}"


_PARTS = {"box_loss": 0.0, "cls_loss": 3.4, "dfl_loss": 0.0}
_UNMATCHED = tuple(
    events.Step(at=float(n), step=n, seconds=0.1, loss=3.4, parts=dict(_PARTS), instances=8) for n in range(1, 16)
)

CHECK = Check(
    kind="learning",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("no problem", on_cpu(experiments(False, "no DataLoader")), "passed"),
        Case("the box loss is 0 although there are boxes", on_mps(experiments(), events=_UNMATCHED), "fatal"),
        Case("all losses are 0", on_cpu(losses=[0.0] * 27), "fatal"),
        Case(
            "the script crashes before its first step",
            on_cpu(losses=(), code=1, last_lines=("Traceback (most recent call last):", "KeyError: 'label'")),
            "fatal",
        ),
        Case("no step is completed in time", on_cpu(losses=(), code=None), "not checked"),
        Case(
            "the steps run in child processes",
            on_cpu(losses=(), events=(events.Step(at=1.0, step=1, seconds=0.1, loss=2.0),)),
            "passed",
        ),
        Case("the command does not train a model", on_cpu(losses=(), code=0), "not checked"),
        Case(
            "the script creates a file elsewhere",
            on_cpu({"event": "file", "what": "made", "path": "/data/log.txt", "how": "open"}),
            "passed",
        ),
        Case(
            "the script fails because a write was blocked",
            on_cpu({"event": "file", "what": "refused", "path": "/data/log.txt", "how": "open"}, losses=(), code=1),
            "not checked",
        ),
    ),
)
