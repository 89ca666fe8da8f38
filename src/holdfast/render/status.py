"""The current state of a run, from its journal and its heartbeat."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.explanation import resume_command
from holdfast.diagnosis.run_state import load_run_state
from holdfast.process.process_identity import AttemptProcesses, ProcessIdentity
from holdfast.render.console import print_json, print_line
from holdfast.render.progress import progress
from holdfast.render.stages import has_stages, stages_summary
from holdfast.render.summary import summary_of
from holdfast.render.text import describe_exit, format_shares, printable
from holdfast.schema.units import duration
from holdfast.storage.folder import stage_folders
from holdfast.storage.heartbeats import read_beats
from holdfast.storage.lock import is_live, read_holder
from holdfast.storage.redact import replay_redacted

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState
    from holdfast.storage.folder import RunFolder


def status_of(run: RunFolder, now: float | None = None) -> dict[str, Any]:
    """Return the current summary, with fields that only an active run has."""
    now = time.time() if now is None else now
    if has_stages(run):
        return _status_of_stages(run, now)
    state = load_run_state(replay_redacted(run))
    live = is_live(run)
    beat = read_beats(run).get(0)
    holder = read_holder(run)
    suspended = bool(state.attempts) and state.attempt.suspended
    activity = (
        ("suspended (type fg to continue)" if suspended else "running")
        if live
        else "ended"
        if state.ended is not None
        else "Holdfast was killed"
    )
    status = {
        **summary_of(run, state),
        "reference": run.reference,
        "state": activity,
        "supervisor": holder,
        "now": None,
    }
    status["progress"] = None
    if state.attempts and state.ended is None:
        attempt = state.attempt
        alive = _is_alive(run, attempt, live=live)
        gone = not live and not alive
        # A process that is gone makes no progress: its time ends with its last sign of life.
        until = max(state.last_at, beat.step_at if beat is not None else 0.0) if gone else now
        status["progress"] = None if gone else progress(state, "")
        sample = attempt.memory.samples[-1] if attempt.memory.samples else None
        known = beat is not None and beat.pid == (attempt.attached.pid if attempt.attached is not None else beat.pid)
        status["now"] = {
            "attempt": attempt.number,
            "step": max(attempt.last_step, beat.step if beat is not None and known else 0),
            "loss": None if beat is None or not math.isfinite(beat.loss) else beat.loss,
            "phase": beat.phase if beat is not None else "starting",
            "alive": alive,
            "last_step_s_ago": round(max(0.0, now - beat.step_at), 1) if beat is not None and beat.step_at else None,
            "epoch": attempt.epoch,
            "memory": sample.rss if sample is not None else None,
            "available": sample.available if sample is not None else None,
            "for_s": round(until - attempt.started.at, 1),
            "last_sign_s_ago": round(max(0.0, now - until), 1) if gone else None,
        }
    return status


def _status_of_stages(run: RunFolder, now: float) -> dict[str, Any]:
    """Status of the whole run, with the current stage's progress."""
    summary = stages_summary(run)
    state = "running" if is_live(run) else "ended" if summary["verdict"] is not None else "Holdfast was killed"
    folders = stage_folders(run)
    newest = status_of(folders[-1], now) if folders else None
    return {
        **summary,
        "reference": run.reference,
        "state": state,
        "supervisor": read_holder(run),
        "now": newest["now"] if newest is not None else None,
        "progress": newest["progress"] if newest is not None else None,
    }


def print_status(status: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    now = status["now"]
    print_line(
        f"{status['run']}: {status['state']}"
        + (f", {status['verdict']}: {printable(status['reason'])}" if status["verdict"] else "")
    )
    if now is not None:
        _print_now(now)
    if status["progress"]:
        print_line(f"  {status['progress']}")
    for stage in status.get("stages", []):
        reached = f", {stage['metric']} {stage['reached']:.4g}" if stage.get("reached") is not None else ""
        print_line(
            f"  stage {stage['n']}, {stage['name']}: {stage['state']}{reached}{': ' + stage['why'] if stage.get('why') else ''}"
        )
    if status["goodput"]["buckets"]:
        print_line(f"  time: {format_shares(status['goodput']['buckets'])}")
    _print_attempts(status["attempts"])
    _print_findings(status)
    resume = _how_to_resume(status)
    if resume is not None:
        print_line(f"  next: {resume}")
    if status["supervisor"] is not None:
        print_line(f"  to stop the run: kill {status['supervisor']} (you can resume it later)")
    print_line(f"  run folder: {status['dir']}")


def _print_findings(status: dict[str, Any]) -> None:
    for finding in status["findings"]:
        if finding["message"] != status["reason"]:
            print_line(f"  {finding['severity']} {finding['rule']}: {printable(finding['message'])}")
    if status.get("findings_left_out"):
        print_line(f"  {status['findings_left_out']:,} further findings are not shown")


def _how_to_resume(status: dict[str, Any]) -> str | None:
    """Return the same advice as the panel: None if resuming would only repeat the failure."""
    command = resume_command(status["reference"])
    explained = status.get("explanation")
    if status["state"] == "Holdfast was killed":
        return command
    if status["state"] != "ended" or explained is None:
        return command if status["verdict"] in ("interrupted", "failed") else None
    step = next((step for step in explained["next_steps"] if step["resumes"]), None)
    return None if step is None else f"{step['text']}: {command}"


def _print_attempts(attempts: list[dict[str, Any]]) -> None:
    for attempt in attempts:
        how = attempt["exit"]
        if how is not None:
            ended = describe_exit(**how, stopped_by=attempt["stopped_by"], planned=attempt["planned"])
            cause = f", {attempt['cause']}" if attempt["cause"] else ""
            steps = f"steps {attempt['first_step']} to {attempt['last_step']}" if attempt["first_step"] else "no steps"
            print_line(f"  attempt {attempt['n']}: {steps}, {ended}{cause}")


def _is_alive(run: RunFolder, attempt: AttemptState, *, live: bool) -> bool:
    """Return True if the training's process is running. A reused pid does not count.

    If a supervisor in another container holds the run, its processes cannot be seen, and the training is assumed to be running.
    """
    started = ProcessIdentity(attempt.started.pid, attempt.started.start, attempt.started.pid_space)
    if started.is_elsewhere():
        return live
    pid = attempt.attached.pid if attempt.attached is not None else attempt.started.pid
    return AttemptProcesses([run.attempt(attempt.number).path], [started]).includes(pid)


def _print_now(now: dict[str, Any]) -> None:
    loss = f", loss {now['loss']:.5g}" if now["loss"] is not None else ""
    if now["last_sign_s_ago"] is not None:
        ago = duration(now["last_sign_s_ago"])
        sign = f"last activity {ago} ago, after running for {duration(now['for_s'])}"
        print_line(f"  attempt {now['attempt']}: step {now['step']}{loss}, process not running; {sign}")
        return
    ago = f", last step {duration(now['last_step_s_ago'])} ago" if now["last_step_s_ago"] is not None else ""
    phase = now["phase"] if now["alive"] else "process not running"
    print_line(
        f"  attempt {now['attempt']} (running for {duration(now['for_s'])}): step {now['step']}, {phase}{loss}{ago}"
    )
