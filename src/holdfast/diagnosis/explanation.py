"""A readable explanation of a run's record: what happened, why, how certain that is, what is unknown, what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.diagnosis.causes import cause_of, is_external, is_mistake, is_out_of_attempts
from holdfast.diagnosis.checkpoints import checkpoints, is_plain_loop, last_good
from holdfast.diagnosis.engine import WEIGHT
from holdfast.diagnosis.exits import describe_position, killed_by
from holdfast.diagnosis.rules import by_id
from holdfast.schema.events import INTERRUPTIONS
from holdfast.schema.exits import describe_exit
from holdfast.schema.shell_text import shell_join, shell_quote

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.verdicts import Confidence, Finding

MAX_STEPS = 8
GUARD = "wrap the training loop in holdfast.guard (docs/guard.md), so that a crash loses at most a few minutes of work"
ESSENTIAL = ("steps", "losses", "weight-updates")
_UNSEEN = "Holdfast could not instrument the process"
"""Kinds of evidence whose absence is reported to the user."""


@dataclass(frozen=True)
class NextStep:
    text: str
    command: str | None = None
    """The command to run, if there is one."""
    resumes: bool = False
    """Whether the command resumes this run."""


@dataclass(frozen=True)
class Explanation:
    story: list[str]
    """A few sentences: what ran, how it ended, what to do."""
    cause: str | None
    """The rule that best explains the end."""
    confidence: Confidence | Literal["unknown"]
    why: list[str]
    """The evidence for the cause."""
    unknown: list[str]
    """What this record cannot answer, and how to find out."""
    next_steps: list[NextStep]


def resume_command(reference: str) -> str:
    return f"holdfast resume {shell_quote(reference)}"


def explain(state: RunState, reference: str | None = None) -> Explanation:
    """Explain a run. `reference` is its name for `holdfast resume`; without it, no resume command is suggested."""
    if not state.attempts:
        return Explanation(["Nothing was started."], None, "unknown", [], [], [])
    finding = find_decisive(state)
    steps = _collect_next_steps(state, finding, reference)
    fatal = finding if finding is not None and finding.severity == "fatal" else None
    return Explanation(
        story=_write_story(state, finding, steps),
        cause=fatal.rule if fatal is not None else None,
        confidence=fatal.confidence if fatal is not None else "unknown",
        why=list(finding.evidence) if finding is not None else [],
        unknown=_list_unknowns(state, finding),
        next_steps=steps,
    )


def find_decisive(state: RunState) -> Finding | None:
    """Return the finding that best explains why the run ended, or else the most severe finding."""
    attempt = state.attempt
    cause = cause_of(attempt)
    found = attempt.find_finding(cause) if cause is not None else None
    if found is not None:
        return found
    rules = by_id()
    severe = [finding for finding in attempt.findings if finding.severity != "note" and finding.rule in rules]
    return max(severe, key=lambda finding: WEIGHT[finding.severity], default=None)


def _write_story(state: RunState, finding: Finding | None, steps: list[NextStep]) -> list[str]:
    attempt = state.attempt
    failure = _describe_previous_failure(state)
    story = [_describe_run(state), *([failure] if failure is not None else [])]
    if finding is not None:
        doubt = "" if finding.confidence == "proven" else f" ({finding.confidence}, not proven)"
        story.append(f"{finding.message}{doubt}")
    elif state.ended is not None:
        story.append(f"The verdict is {state.ended.verdict}: {state.ended.reason}.")
    elif _has_failed(attempt):
        story.append("The journal does not show why the run ended.")
    else:
        since = " since then" if failure is not None else ""
        story.append(f"No problems were found{since}.")
    if steps:
        story.append(f"Next: {steps[0].text}{'' if steps[0].text.endswith(('.', '?', '!')) else '.'}")
    return story


def _describe_run(state: RunState) -> str:
    attempt = state.attempt
    name = state.started.run if state.started is not None else "The run"
    tries = f"{len(state.attempts)} attempts" if len(state.attempts) > 1 else "1 attempt"
    epochs = ""
    if attempt.epoch:
        of = f" of {attempt.planned_epochs}" if attempt.planned_epochs else ""
        epochs = f"{attempt.epoch}{of} epochs" if of or attempt.epoch != 1 else "1 epoch"
    within = f" ({epochs})" if epochs else ""
    steps = f"{state.last_step} steps{within}" if state.last_step else epochs or "no steps"
    return f"{name} made {tries}, completed {steps} and {_describe_end(attempt)}."


def _describe_previous_failure(state: RunState) -> str | None:
    """Describe the failure before the current attempt, if the current attempt is still running."""
    if state.attempt.ended is not None or len(state.attempts) < 2:
        return None
    before, now = state.attempts[-2:]
    if not _has_failed(before):
        return None
    cause = cause_of(before)
    found = before.find_finding(cause) if cause is not None else None
    why = found.message if found is not None else f"It {_describe_end(before)}."
    resumed = now.resumed
    how = f"resumes from step {resumed.step}" if resumed is not None and resumed.step else "resumes"
    return f"Attempt {before.number} failed: {why} Attempt {now.number} {'starts over' if now.starts_over else how}."


def _describe_end(attempt: AttemptState) -> str:
    ended = attempt.ended
    if ended is None:
        return "has not ended"
    if ended.planned:
        return f"was stopped by Holdfast {describe_position(attempt)}, to resume in a new process"
    if ended.stopped_by == "budget":
        return "was stopped because its time budget was used up"
    if ended.stopped_by in ("user", "terminate"):
        return "was stopped by you" if ended.stopped_by == "user" else "was stopped by SIGTERM"
    if ended.stopped_by is not None:
        return f"was stopped {describe_position(attempt)} ({ended.rule or ended.stopped_by})"
    signal = killed_by(ended)
    return describe_exit(ended.code, signal) + (f" {describe_position(attempt)}" if signal is not None else "")


def _has_failed(attempt: AttemptState) -> bool:
    ended = attempt.ended
    was_requested = ended is not None and (ended.planned or ended.stopped_by in INTERRUPTIONS)
    return ended is not None and ended.code != 0 and not was_requested


def _list_unknowns(state: RunState, finding: Finding | None) -> list[str]:
    attempt, ended, failed = state.attempt, state.attempt.ended, _has_failed(state.attempt)
    open_questions = []
    if failed and ended is not None and ended.code is None and ended.signal is None and not ended.stopped_by:
        open_questions.append(
            "How it ended: neither an exit code nor a signal was recorded, so an out-of-memory kill, a crash and an abort "
            "cannot be distinguished. Pass the exit status with `holdfast diagnose --exit-code N`, or run the command with `holdfast run`."
        )
    elif failed and finding is None:
        open_questions.append("Why it ended: no rule explains it.")
    if finding is not None and finding.confidence != "proven":
        open_questions.append(
            f"Whether the cause really is {finding.rule}: the evidence fits, but does not rule out another cause."
        )
    coverage = next((a.coverage for a in reversed(state.attempts) if a.coverage is not None), None)
    unseen = [kind for kind in ESSENTIAL if coverage is None or kind not in coverage.seen]
    # The probe in a process that has only just started may not have reported yet.
    starting = coverage is None and ended is None and attempt.started.pid
    if unseen and not starting:
        missing = coverage.missing if coverage is not None else {}
        reasons = (missing[kind] for kind in unseen if kind in missing)
        why = next(reasons, _UNSEEN if coverage is None else "no value was recorded")
        open_questions.append(f"Not recorded: {', '.join(unseen)} ({why}).")
    return open_questions


def _collect_next_steps(state: RunState, finding: Finding | None, reference: str | None) -> list[NextStep]:
    order = [finding] if finding is not None else []
    order += sorted(
        (other for other in state.attempt.findings if other is not finding and other.severity != "note"),
        key=lambda other: -WEIGHT[other.severity],
    )
    steps = [NextStep(text) for found in order for text in found.remedies]
    known = checkpoints(state)
    good = last_good(state)
    if good is not None and not all(checkpoint.usable for checkpoint in known):
        steps.insert(0, NextStep(f"go back to the last good checkpoint: {good.path} (step {good.step})"))
    rule = state.attempt.ended.rule if state.attempt.ended is not None else ""
    if rule in by_id() and state.started is not None:
        again = f"holdfast run --rule {rule}=warn -- {shell_join(state.started.command)}"
        steps.insert(min(2, len(steps)), NextStep("if this is intended, downgrade this rule to a warning", again))
    if reference is not None and _can_resume(state):
        text = _describe_resume(state)
        text = f"after you have fixed the error, {text}" if is_mistake(state.attempt) else text
        resume = NextStep(text, resume_command(reference), resumes=True)
        if is_out_of_attempts(state.attempt) and finding is not None and is_external(finding.rule):
            more = "next time, allow more attempts: --max-attempts N (in a plan: [budget] attempts)"
            steps[:0] = [resume, NextStep(more)]
        else:
            steps.insert(min(1, len(steps)), resume)
    if _has_failed(state.attempt) and state.attempt.steps and is_plain_loop(state):
        steps.insert(min(2, len(steps)), NextStep(GUARD))
    shown: dict[str, NextStep] = {}
    for step in steps:
        if step.text not in shown:
            shown[step.text] = step
    return list(shown.values())[:MAX_STEPS]


def _can_resume(state: RunState) -> bool:
    """Return whether to suggest a resume. After a mistake is fixed, it is worthwhile only if something was saved."""
    ended = state.ended
    if ended is None:
        return False
    worth_it = not is_mistake(state.attempt) or _has_saved_state(state)
    return ended.verdict == "interrupted" or (ended.verdict == "failed" and worth_it)


def _describe_resume(state: RunState) -> str:
    snapshot = next((a.snapshots.newest for a in reversed(state.attempts) if a.snapshots.newest), None)
    if snapshot is not None:
        return f"resume from the snapshot of step {snapshot.step}"
    if not _has_saved_state(state):
        return "start the run again (nothing was saved)"
    if is_plain_loop(state):
        return "start the command again (to resume from a checkpoint, add --checkpoint and --resume-with)"
    return "resume from the last checkpoint"


def _has_saved_state(state: RunState) -> bool:
    return any(attempt.saves.count or attempt.snapshots.newest is not None for attempt in state.attempts)
