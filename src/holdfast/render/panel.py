"""The panel at the end of a run: what happened, at which step, why, what was done, and where the run folder is."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.checkpoints import checkpoints, last_good
from holdfast.diagnosis.explanation import ESSENTIAL, explain
from holdfast.render.box import Box
from holdfast.render.console import console
from holdfast.render.newline_guard import NewlineGuard
from holdfast.render.report import HTML
from holdfast.render.summary import goodput, newest_coverage
from holdfast.render.text import (
    best_weights,
    describe_change,
    describe_exit,
    describe_repeated_work,
    describe_saved,
    format_shares,
    plural,
    printable,
    results_folder,
)
from holdfast.schema.units import duration, size
from holdfast.schema.verdicts import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.render.box import Row
    from holdfast.storage.folder import RunFolder

COLOURS = {"learned": "green", "unproven": "yellow", "not-learned": "red", "failed": "red", "interrupted": "yellow"}
SEVERITY_COLOURS = {"fatal": "red", "warn": "yellow", "note": "cyan"}
MAX_ATTEMPTS = 6
MAX_CORRUPT = 3
MAX_NEXT = 4


def panel(run: RunFolder, state: RunState) -> Box:
    ended = state.ended
    outcome = ended.verdict if ended is not None else "not ended"
    colour = COLOURS.get(outcome, "cyan")
    rows = ((label, style, printable(text)) for label, style, text in _rows(run, state, outcome, colour))
    return Box(f"holdfast · {run.name}", rows, colour)


def print_panel(run: RunFolder, state: RunState) -> None:
    print_box(run, panel(run, state))


def print_box(run: RunFolder, box: Box) -> None:
    """Print on stderr, so that stdout has only the training's output. Raise OSError if stderr is closed."""
    shown = console(sys.stderr)
    with shown.capture() as captured:
        shown.print(box, soft_wrap=True)
    sys.stderr.write(NewlineGuard(run).needed_newline(sys.stderr) + captured.get())
    sys.stderr.flush()


def _rows(run: RunFolder, state: RunState, outcome: str, colour: str) -> Iterator[Row]:
    yield outcome, f"bold {colour}", state.ended.reason if state.ended is not None else "the run has not ended"
    yield "", "", _figures(state)
    spent = goodput(state)
    if len(state.attempts) > 1 and spent["buckets"]:
        yield "time", "bold", format_shares(spent["buckets"])
    if len(state.attempts) > 1 or outcome not in ("learned", "unproven"):
        yield from _attempts(state, reason=state.ended.reason if state.ended is not None else "")
    yield from _findings(state)
    yield from _checkpoints(state)
    yield from _results(state)
    yield from _unseen(state)
    for step in next_steps(run, state):
        yield "next", "bold", step
    if (run.path / HTML).is_file():
        yield "report", "bold", str(run.path / HTML)
    yield "run folder", "bold", str(run.path)


def _figures(state: RunState) -> str:
    last = state.last_step
    spent = goodput(state)
    facts = [plural(len(state.attempts), "attempt"), plural(last, "step"), duration(spent["wall_s"])]
    memory = max((attempt.memory.most_rss for attempt in state.attempts), default=0)
    if memory:
        facts.append(f"peak memory {size(memory)}")
    if last and spent["wall_s"] >= 60:
        facts.append(f"{spent['ratio']:.0%} useful training time")
    return ", ".join(facts)


def _attempts(state: RunState, reason: str) -> Iterator[Row]:
    shown = state.attempts[-MAX_ATTEMPTS:]
    if len(shown) < len(state.attempts):
        yield "", "", f"({plural(len(state.attempts) - len(shown), 'earlier attempt')} not shown; see the report)"
    following = {attempt.number: after for attempt, after in pairwise(state.attempts)}
    for attempt in shown:
        yield f"attempt {attempt.number}", "bold", _describe_attempt(attempt)
        cause = cause_of(attempt)
        finding = attempt.find_finding(cause) if cause is not None else None
        if finding is not None and finding.message != reason:
            yield "  why", "", finding.message
        if saved := describe_saved(attempt):
            yield "  saved", "", saved
        decision = attempt.decision
        if decision is not None and attempt.ended is not None and attempt.ended.code != 0:
            label = "  then" if decision.action is not Action.STOP else "  stopped"
            yield label, "", decision.why
            for change in decision.changes:
                yield "  changed", "", describe_change(change)
        if repeated := describe_repeated_work(attempt, following.get(attempt.number)):
            yield "  repeated", "", repeated


def _describe_attempt(attempt: AttemptState) -> str:
    steps = f"steps {attempt.first_step} to {attempt.last_step}" if attempt.steps else "no steps"
    ended = attempt.ended
    if ended is None:
        return f"{steps}, running"
    how = describe_exit(
        code=ended.code, signal=ended.signal, stopped_by=ended.rule or ended.stopped_by, planned=ended.planned
    )
    return f"{steps}, {duration(ended.seconds)}, {how}"


def _findings(state: RunState) -> Iterator[Row]:
    """Findings other than the causes of exits, the newest of each rule."""
    causes = {cause_of(attempt) for attempt in state.attempts} | {"probe-absent"}
    shown = {finding.rule: finding for finding in state.findings if finding.rule not in causes}
    reason = state.ended.reason if state.ended is not None else ""
    for finding in shown.values():
        if finding.message == reason:
            continue
        yield finding.severity, SEVERITY_COLOURS[finding.severity], f"{finding.rule}: {finding.message}"


def _checkpoints(state: RunState) -> Iterator[Row]:
    """Checkpoints not to use, and the newest usable one."""
    known = checkpoints(state)
    corrupt = [checkpoint for checkpoint in known if not checkpoint.usable]
    if not corrupt:
        return
    for checkpoint in corrupt[-MAX_CORRUPT:]:
        yield "unusable", "red", f"{checkpoint.path} (step {checkpoint.step}): {checkpoint.why}"
    good = last_good(state)
    if good is not None:
        yield "usable", "green", f"{good.path} (step {good.step}): {good.why}"


def _results(state: RunState) -> Iterator[Row]:
    best, results = best_weights(state), results_folder(state)
    if best is not None:
        yield "best", "bold green", best
    if results is not None:
        yield "results", "bold", results


def _unseen(state: RunState) -> Iterator[Row]:
    reasons: dict[str, list[str]] = {}
    for kind, why in newest_coverage(state).missing.items():
        if kind in ESSENTIAL:
            reasons.setdefault(why, []).append(kind)
    for why, kinds in reasons.items():
        yield "not recorded", "bold", f"{', '.join(kinds)}: {why}"


def next_steps(run: RunFolder, state: RunState) -> list[str]:
    """What the user can do now, most useful first."""
    ended = state.ended
    warned = any(finding.severity != "note" for finding in state.attempt.findings) if state.attempts else False
    if ended is None or (ended.verdict in ("learned", "unproven") and not warned):
        return []
    steps = [
        f"{step.text}: {step.command}" if step.command else step.text
        for step in explain(state, run.reference).next_steps[:MAX_NEXT]
    ]
    folder = run.attempt(state.attempt.number)
    written = [log for log in (folder.stderr_log, folder.stdout_log) if log.is_file() and log.stat().st_size]
    return [*steps, f"read {written[0]}"] if ended.verdict == "failed" and written else steps
