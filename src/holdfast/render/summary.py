"""`summary.json`: the result of a run, for tools. Its fields are a contract; `schema` changes when they do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.checkpoints import checkpoints
from holdfast.diagnosis.explanation import ESSENTIAL, explain
from holdfast.diagnosis.goodput import goodput_of
from holdfast.diagnosis.rules.probe_absent import reason as why_unseen
from holdfast.schema.events import Coverage
from holdfast.schema.json_text import to_json
from holdfast.storage.folder import write_atomically
from holdfast.storage.summary_file import SUMMARY_SCHEMA, journal_bytes

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.events import RunEnded
    from holdfast.storage.folder import RunFolder


def summary_of(run: RunFolder, state: RunState) -> dict[str, Any]:
    ended = state.ended
    return {
        **head(run, ended),
        "proofs": msgspec.to_builtins(ended.proofs) if ended is not None else [],
        "coverage": _coverage(state),
        "attempts": [_attempt(attempt) for attempt in state.attempts],
        "findings": [_finding(finding) for finding in msgspec.to_builtins(state.findings)],
        "findings_left_out": sum(attempt.findings_left_out for attempt in state.attempts),
        "decisions": [msgspec.to_builtins(a.decision) for a in state.attempts if a.decision is not None],
        "checkpoints": [asdict(checkpoint) for checkpoint in checkpoints(state)],
        "explanation": asdict(explain(state, run.reference)),
        "goodput": goodput(state),
    }


def head(run: RunFolder, ended: RunEnded | None) -> dict[str, Any]:
    """Fields at the start of every summary."""
    return {
        "schema": SUMMARY_SCHEMA,
        "run": run.name,
        "dir": str(run.path),
        "verdict": ended.verdict if ended is not None else None,
        "reason": ended.reason if ended is not None else "the run has not ended",
        "exit_status": ended.exit_status if ended is not None else None,
        "journal_bytes": journal_bytes(run),
    }


def write_summary(run: RunFolder, summary: dict[str, Any]) -> None:
    write_atomically(run.summary, msgspec.json.format(to_json(summary), indent=2) + "\n")


def newest_coverage(state: RunState) -> Coverage:
    for attempt in reversed(state.attempts):
        if attempt.coverage is not None:
            return attempt.coverage
    missing = dict.fromkeys(ESSENTIAL, why_unseen(state.attempt)[0]) if state.attempts else {}
    return Coverage(at=0.0, missing=missing, step_source="")


def _coverage(state: RunState) -> dict[str, str]:
    """Each kind of evidence: seen, or not seen and why."""
    coverage = newest_coverage(state)
    seen = {kind: f"seen: {remark}" if remark else "seen" for kind, remark in coverage.seen.items()}
    missing = {kind: f"not seen: {why}" for kind, why in coverage.missing.items()}
    source = {"step_source": coverage.step_source} if coverage.step_source else {}
    return {**seen, **missing, **source}


def goodput(state: RunState) -> dict[str, Any]:
    """Where the time went."""
    spent = goodput_of(state)
    return {
        "wall_s": round(spent.wall_s, 3),
        "useful_s": round(spent.useful_s, 3),
        "ratio": round(spent.ratio, 4) if spent.wall_s else None,
        "buckets": {name: round(seconds, 3) for name, seconds in spent.buckets.items()} if spent.wall_s else {},
    }


def _attempt(attempt: AttemptState) -> dict[str, Any]:
    ended = attempt.ended
    resume = attempt.resumed
    return {
        "n": attempt.number,
        "exit": {"code": ended.code, "signal": ended.signal} if ended is not None else None,
        "stopped_by": (ended.rule or ended.stopped_by) if ended is not None else None,
        "planned": ended.planned if ended is not None else "",
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "seconds": round(ended.seconds, 3) if ended is not None else None,
        "cause": cause_of(attempt),
        "changes": msgspec.to_builtins(attempt.started.changes),
        "resumed": msgspec.to_builtins(resume) if resume is not None else None,
        "replayed": _replayed(attempt),
        "saved": msgspec.to_builtins(attempt.backed_up.files) if attempt.backed_up is not None else [],
    }


def _replayed(attempt: AttemptState) -> dict[str, Any] | None:
    """Batches repeated after a snapshot was restored, and whether their losses were the same."""
    replayed = attempt.snapshots.replayed
    return {"compared": replayed.compared, "differs_at": replayed.differs_at} if replayed is not None else None


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    return {"step": None, "epoch": None, "evidence": [], "remedies": [], **finding}
