"""What a run's record says, for a person: what happened, why, how sure that is, what is not known, what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.diagnosis.causes import OUTSIDE, cause_of, is_mistake, is_out_of_attempts
from holdfast.diagnosis.checkpoints import checkpoints, last_good
from holdfast.diagnosis.engine import WEIGHT
from holdfast.diagnosis.exits import killed_by, where
from holdfast.diagnosis.plain_loop import is_plain_loop
from holdfast.diagnosis.rules import by_id
from holdfast.schema.shell_text import shell_joined, shell_quoted

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.verdicts import Confidence, Finding

MAX_STEPS = 8
GUARD = "so that a death costs minutes at most, put holdfast.guard around the loop: two lines, docs/guard.md"
ESSENTIAL = ("steps", "losses", "weight-updates")
"""Kinds of evidence whose absence a user should know of."""


@dataclass(frozen=True)
class NextStep:
    text: str
    command: str | None = None
    """What to type, where there is such a thing."""
    resumes: bool = False
    """Whether that goes on with this very run."""


@dataclass(frozen=True)
class Explanation:
    story: list[str]
    """A few sentences: what ran, what became of it, what to do."""
    cause: str | None
    """The rule that explains the end best."""
    confidence: Confidence | Literal["unknown"]
    why: list[str]
    """The evidence for the cause."""
    unknown: list[str]
    """What this record cannot tell, and how to find out."""
    next_steps: list[NextStep]


def resume_command(reference: str) -> str:
    return f"holdfast resume {shell_quoted(reference)}"


def explain(state: RunState, reference: str | None = None) -> Explanation:
    """`reference` is what `holdfast resume` calls this run by; without it nothing can be resumed."""
    if not state.attempts:
        return Explanation(["Nothing was started."], None, "unknown", [], [], [])
    finding = decisive(state)
    steps = _next_steps(state, finding, reference)
    died = _died(state.attempt)
    return Explanation(
        story=_story(state, finding, steps),
        cause=finding.rule if finding is not None and finding.severity == "fatal" else None,
        confidence=finding.confidence if finding is not None and finding.severity == "fatal" else "unknown",
        why=list(finding.evidence) if finding is not None else [],
        unknown=_unknown(state, finding, died=died),
        next_steps=steps,
    )


def decisive(state: RunState) -> Finding | None:
    """The one finding that says most about what the run came to: of why it ended, else the gravest."""
    attempt = state.attempt
    cause = cause_of(attempt)
    found = attempt.found(cause) if cause is not None else None
    if found is not None:
        return found
    rules = by_id()
    grave = [finding for finding in attempt.findings if finding.severity != "note" and finding.rule in rules]
    return max(grave, key=lambda finding: WEIGHT[finding.severity], default=None)


def _story(state: RunState, finding: Finding | None, steps: list[NextStep]) -> list[str]:
    attempt = state.attempt
    death = _gone_on_from(state)
    story = [_what_ran(state), *([death] if death is not None else [])]
    if finding is not None:
        doubt = {"proven": "", "likely": "Most likely: ", "possible": "Possibly: "}[finding.confidence]
        story.append(finding.message if "likely" in finding.message else doubt + finding.message)
    elif state.ended is not None:
        story.append(f"The verdict is {state.ended.verdict}: {state.ended.reason}.")
    elif _died(attempt):
        story.append("The record does not say why it ended.")
    else:
        since = " since" if death is not None else ""
        story.append(f"Nothing was found{since} that speaks against it.")
    if steps:
        story.append(f"Next: {steps[0].text}{'' if steps[0].text.endswith(('.', '?', '!')) else '.'}")
    return story


def _what_ran(state: RunState) -> str:
    attempt = state.attempt
    name = state.started.run if state.started is not None else "The run"
    tries = f"{len(state.attempts)} attempts" if len(state.attempts) > 1 else "one attempt"
    epochs = ""
    if attempt.epoch:
        of = f" of {attempt.planned_epochs}" if attempt.planned_epochs else ""
        epochs = f", {attempt.epoch}{of} epochs"
    steps = f"{state.last_step} steps{epochs}" if state.last_step else epochs.removeprefix(", ") or "no step"
    return f"{name} made {steps} in {tries} and {_how_it_ended(attempt)}."


def _gone_on_from(state: RunState) -> str | None:
    """The death that the attempt which is under way comes after."""
    if state.attempt.ended is not None or len(state.attempts) < 2:
        return None
    before, now = state.attempts[-2:]
    if not _died(before):
        return None
    cause = cause_of(before)
    found = before.found(cause) if cause is not None else None
    why = found.message if found is not None else f"It {_how_it_ended(before)}."
    resumed = now.resumed
    how = f"goes on from step {resumed.step}" if resumed is not None and resumed.step else "goes on"
    return f"Attempt {before.number} died: {why} Attempt {now.number} {'starts over' if now.starts_over else how}."


def _how_it_ended(attempt: AttemptState) -> str:
    ended = attempt.ended
    if ended is None:
        return "has not ended"
    if ended.planned:
        return f"was ended on purpose {where(attempt)}, to go on in a fresh process"
    if ended.stopped_by in ("user", "terminate", "budget"):
        return "was stopped on request"
    if ended.stopped_by is not None:
        return f"was stopped {where(attempt)} ({ended.stopped_by})"
    if ended.code == 0:
        return "finished"
    signal = killed_by(ended)
    if signal is not None:
        return f"was ended by {signal} {where(attempt)}"
    return f"ended with exit code {ended.code}" if ended.code is not None else "ended in a way that was not recorded"


def _died(attempt: AttemptState) -> bool:
    ended = attempt.ended
    asked = ended is not None and (ended.planned or ended.stopped_by in ("user", "terminate", "budget"))
    return ended is not None and ended.code != 0 and not asked


def _unknown(state: RunState, finding: Finding | None, *, died: bool) -> list[str]:
    attempt, ended = state.attempt, state.attempt.ended
    open_questions = []
    if died and ended is not None and ended.code is None and ended.signal is None and not ended.stopped_by:
        open_questions.append(
            "How it ended: neither an exit code nor a signal was recorded, so a kill for memory, a crash and an abort "
            "cannot be told apart. `echo $?` right after it, or a run under Holdfast, records that."
        )
    elif died and finding is None:
        open_questions.append("Why it ended: no rule explains this end.")
    if finding is not None and finding.confidence != "proven":
        open_questions.append(
            f"Whether it really was {finding.rule}: the evidence fits, but does not exclude another cause."
        )
    coverage = next((each.coverage for each in reversed(state.attempts) if each.coverage is not None), None)
    kinds = coverage.kinds if coverage is not None else {}
    unseen = [kind for kind in ESSENTIAL if kinds.get(kind, "not seen").startswith("not seen")]
    # A process that has only just started has not had the time to say hello.
    starting = coverage is None and ended is None and attempt.started.pid
    if unseen and not starting:
        told = next((kinds[kind] for kind in unseen if kind in kinds), "not seen: no probe was in the process")
        open_questions.append(f"{', '.join(unseen).capitalize()}: {told}.")
    return open_questions


def _next_steps(state: RunState, finding: Finding | None, reference: str | None) -> list[NextStep]:
    order = [finding] if finding is not None else []
    order += sorted(
        (other for other in state.attempt.findings if other is not finding and other.severity != "note"),
        key=lambda other: -WEIGHT[other.severity],
    )
    steps = [NextStep(text) for found in order for text in found.remedies]
    known = checkpoints(state)
    good = last_good(state)
    if good is not None and not all(checkpoint.usable for checkpoint in known):
        steps.insert(0, NextStep(f"the last good checkpoint is {good.path}, of step {good.step}: go back to it"))
    stopped_by = state.attempt.ended.stopped_by if state.attempt.ended is not None else None
    if stopped_by in by_id() and state.started is not None:
        again = f"holdfast run --rule {stopped_by}=warn -- {shell_joined(state.started.command)}"
        steps.insert(min(2, len(steps)), NextStep("if it is meant that way, let this rule only warn", again))
    if reference is not None and _can_be_resumed(state):
        said = _how_it_would_go_on(state)
        said = f"once that is mended, {said}" if is_mistake(state.attempt) else said
        resume = NextStep(said, resume_command(reference), resumes=True)
        if is_out_of_attempts(state.attempt) and finding is not None and finding.rule in OUTSIDE:
            more = "give the next run more attempts from its start: --max-attempts N (in a plan: [budget] attempts)"
            steps[:0] = [resume, NextStep(more)]
        else:
            steps.insert(min(1, len(steps)), resume)
    if _died(state.attempt) and state.attempt.steps and is_plain_loop(state):
        steps.insert(min(2, len(steps)), NextStep(GUARD))
    seen: set[str] = set()
    return [step for step in steps if not (step.text in seen or seen.add(step.text))][:MAX_STEPS]  # type: ignore[func-returns-value]


def _can_be_resumed(state: RunState) -> bool:
    """A mistake comes again, and needs a person first; what earlier attempts saved is worth going on from after that."""
    ended = state.ended
    if ended is None:
        return False
    worth_it = not is_mistake(state.attempt) or _something_is_kept(state)
    return ended.verdict == "interrupted" or (ended.verdict == "failed" and worth_it)


def _how_it_would_go_on(state: RunState) -> str:
    snapshot = next((each.snapshots.newest for each in reversed(state.attempts) if each.snapshots.newest), None)
    if snapshot is not None:
        return f"go on from its snapshot of step {snapshot.step}"
    if not _something_is_kept(state):
        return "try it again"
    told = " (as --checkpoint and --resume-with tell; without them it starts over)" if is_plain_loop(state) else ""
    return f"go on from what was saved{told}"


def _something_is_kept(state: RunState) -> bool:
    return any(attempt.saves.count or attempt.snapshots.newest is not None for attempt in state.attempts)
