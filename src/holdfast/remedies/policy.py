"""What to do about findings and failures: small decisions based on one run state. Nothing here acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.causes import UNSEEN_PROGRESS_S, cause_of, is_external, is_mistake
from holdfast.diagnosis.exits import describe_position
from holdfast.diagnosis.rules import by_id
from holdfast.remedies import Remedy, corrupts_state, remedy_for
from holdfast.schema.devices import parse_device
from holdfast.schema.verdicts import Action, Decision, Outcome

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.events import Resume
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Finding, StopReason

MAX_WAIT_S = 60.0
MIN_EXPECTED_S = 10.0


def expected_attempt_seconds(state: RunState) -> float | None:
    """Return the expected duration of an attempt, from those before it; None if there are none."""
    durations = [attempt.ended.seconds for attempt in state.attempts if attempt.ended is not None]
    return max(MIN_EXPECTED_S, sum(durations) / len(durations)) if durations else None


def ends_attempt(finding: Finding, plan: Plan) -> bool:
    """Return whether a finding stops a running attempt: only a proven failure does, and only if the user allows it."""
    if finding.severity != "fatal" or plan.observe_only or plan.on_finding != "act":
        return False
    rule = by_id().get(finding.rule)
    return rule is not None and rule.kind in ("learning", "resources")


def asks_for_snapshot(finding: Finding, plan: Plan) -> bool:
    """Return whether a finding predicts a failure: then a snapshot should be taken at once."""
    rule = by_id().get(finding.rule)
    return rule is not None and rule.predicts_kill and finding.severity != "note" and not plan.observe_only


def worth_a_restart(finding: Finding, state: RunState, plan: Plan) -> bool:
    """Return whether a finding about a running training is worth a restart in a new process with a changed setting."""
    rule = by_id().get(finding.rule)
    may_restart = plan.on_finding == "act" and plan.policy.planned_restarts and not plan.observe_only
    if not may_restart or rule is None or not rule.restarts_while_running or finding.severity == "note":
        return False
    remedy = remedy_for(state, plan, finding.rule)
    return remedy is not None and bool(remedy.changes)


def suspects_device(state: RunState) -> bool:
    """Return whether results of the training device should be compared with the CPU."""
    if not parse_device(state.attempt.settings.get("device")).kind.is_accelerator:
        return False
    rules = by_id()
    severe = (finding.rule for finding in state.findings if finding.severity != "note")
    return any(rules[id_].suspects_device for id_ in severe if id_ in rules)


def corrupt_from_step(state: RunState, remedy: Remedy | None) -> int | None:
    """Return the first step whose saved state must not be resumed from; None if everything this attempt saved is good."""
    return _find_corrupt_step(state) if remedy is not None and remedy.from_start else None


def corrupt_from_of_last_attempt(state: RunState) -> int | None:
    """For a run that is resumed: return the first step at which the state of its newest attempt is corrupt."""
    return _find_corrupt_step(state) if corrupts_state(cause_of(state.attempt)) else None


def _find_corrupt_step(state: RunState) -> int:
    finding = state.attempt.find_finding(cause_of(state.attempt) or "")
    return (finding.corrupt_from if finding is not None else None) or 1


def after_end(
    state: RunState, plan: Plan, *, attempts_left: int, resume: Resume, remedy: Remedy | None = None
) -> Decision:
    """Decide what follows when an attempt is over: stop, another attempt, or another attempt with a remedy."""
    attempt = state.attempt
    cause = cause_of(attempt)
    reason = reason_to_stop(state, plan, attempts_left=attempts_left, resume=resume, remedy=remedy)
    if reason is not None:
        code, text = reason
        return Decision(action=Action.STOP, attempt=attempt.number, why=text, stop_reason=code, cause=cause)
    changes = remedy.changes if remedy is not None else []
    planned = attempt.ended.planned if attempt.ended is not None else ""
    came_further = attempt.steps and resume.checkpoint is not None and not without_progress(state)
    wait = min(MAX_WAIT_S, plan.backoff_s * (1 if came_further else 2 ** (len(state.attempts) - 1)))
    if changes or planned or (is_external(cause) and attempt.steps and resume.checkpoint is not None):
        wait = 0.0  # waiting would not help
    how = f"starting over: {resume.why}"
    if resume.checkpoint:
        how = f"resuming from {resume.checkpoint} (step {resume.step})"
    why = [planned or f"attempt {attempt.number} ended {describe_position(attempt)}"]
    why += [_to_clause(remedy.description)] if remedy is not None and remedy.description else []
    return Decision(
        action=Action.RETRY if changes else Action.RESTART,
        attempt=attempt.number,
        why=f"{'; '.join(why)}; {how}",
        cause=cause,
        wait_s=wait,
        changes=changes,
        discard_from=corrupt_from_step(state, remedy),
        planned=bool(planned),
    )


def _to_clause(description: str) -> str:
    """Convert a sentence into a clause. Names such as PYTORCH_MPS_PREFER_METAL or amp=False keep their case."""
    word = description.partition(" ")[0]
    is_plain = word.isalpha() and word[1:] == word[1:].lower()
    return (description[:1].lower() if is_plain else description[:1]) + description[1:].rstrip(".")


def is_over(state: RunState) -> bool:
    """Return whether a run has a verdict and its training finished successfully, so that there is nothing to resume.

    A run that was stopped between its last step and the verdict still needs a verdict.
    """
    if state.ended is None or state.ended.verdict == Outcome.INTERRUPTED:
        return False
    finished = bool(state.attempts) and state.attempt.finished
    return finished or state.ended.verdict in (Outcome.LEARNED, Outcome.UNPROVEN)


def reason_to_stop(
    state: RunState, plan: Plan, *, attempts_left: int, resume: Resume, remedy: Remedy | None = None
) -> tuple[StopReason, str] | None:
    """Return the first reason to stop that applies, as a code and as text; None if there is no reason."""
    attempt, cause, without_remedy = state.attempt, cause_of(state.attempt), remedy is None
    ended = attempt.ended
    if ended is None:
        return "not-ended", "the attempt has not ended"
    rule = by_id().get(ended.rule)
    reasons: tuple[tuple[bool, StopReason, str], ...] = (
        (ended.code == 0 and ended.stopped_by is None, "finished", "the command finished"),
        (ended.stopped_by == "user", "user", "you interrupted it"),
        (ended.stopped_by == "terminate", "terminate", "Holdfast was asked to terminate"),
        (ended.stopped_by == "budget", "budget", "the plan's time budget is used up"),
        (plan.observe_only, "observe-only", "--observe-only: Holdfast does not restart anything"),
        (
            without_remedy and rule is not None and rule.kind == "learning",
            "would-fail-again",
            f"{ended.rule}: a restart would fail the same way",
        ),
        (cause == "disk-full", "disk-full", "disk-full: free some disk space, then run `holdfast resume`"),
        (
            without_remedy and is_mistake(attempt),
            "mistake",
            f"it failed {describe_position(attempt)}: a restart would fail the same way",
        ),
        (attempts_left <= 0 and not ended.planned, "no-attempt-left", _out_of_attempts(plan, resume)),
        (
            without_remedy and without_progress(state),
            "no-progress",
            f"{cause} happened twice without progress in between",
        ),
        (
            attempt.backed_up is not None and bool(attempt.backed_up.left_out) and resume.checkpoint is None,
            "not-backed-up",
            "starting over could overwrite saved files, and they could not be backed up",
        ),
    )
    return next(((code, text) for holds, code, text in reasons if holds), None)


def _out_of_attempts(plan: Plan, resume: Resume) -> str:
    allowed = plan.budget.attempts
    text = f"{'it was the only attempt' if allowed == 1 else 'no attempt is left'} (--max-attempts {allowed})"
    if resume.checkpoint is None:
        return text
    where = f" from step {resume.step}" if resume.step else f" from {resume.checkpoint}"
    return f"{text}; `holdfast resume` continues{where}"


def without_progress(state: RunState) -> bool:
    """Return whether the last two attempts ended for the same cause and the later one got no further."""
    if len(state.attempts) < 2:
        return False
    before, now = state.attempts[-2:]
    cause = cause_of(now)
    if cause is None or is_external(cause) or cause != cause_of(before):
        return False
    resume = now.started.resume
    number_unknown = resume is not None and resume.checkpoint is not None and not resume.step
    if now.attached is None or number_unknown:
        return now.ended is not None and now.ended.seconds <= UNSEEN_PROGRESS_S
    return now.last_step <= before.last_step
