"""Code shared by `run` and `resume`: from command-line options to a supervised training and its summary."""

from __future__ import annotations

import contextlib
import gc
import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.diagnosis import rule_config
from holdfast.diagnosis.run_state import load_run_state
from holdfast.launch.new_run_folder import create_run_folder
from holdfast.render.console import print_json, say
from holdfast.render.console_reporter import ConsoleReporter
from holdfast.render.report import write_report
from holdfast.render.summary import summary_of, write_summary
from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.events import AttemptStarted
from holdfast.schema.plan import HangSettings
from holdfast.storage.folder import working_folder
from holdfast.storage.journal import replay
from holdfast.storage.plan_copy import write_plan
from holdfast.storage.redact import replay_redacted
from holdfast.supervisor import supervisor
from holdfast.supervisor.notify import split_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Verdict
    from holdfast.storage.folder import RunFolder


def apply_options(plan: Plan, options: dict[str, Any]) -> Plan:
    """Return the plan with the options of the command line."""
    names = {"backoff": "backoff_s", "max_lost_work": "max_lost_work_s"}
    converted = {"max_attempts", "hours", "hang_after", "rule"}
    fields = {names.get(name, name): value for name, value in options.items() if name not in converted}
    limits = {"attempts": options.get("max_attempts"), "hours": options.get("hours")}
    limits = {name: value for name, value in limits.items() if value is not None}
    if limits:
        fields["budget"] = msgspec.structs.replace(plan.budget, **limits)
    if (after := options.get("hang_after")) is not None:
        fields["hang"] = HangSettings(floor_s=after, start_floor_s=max(after, 60.0), confirm_s=min(30.0, after))
    if "rule" in options:
        fields["rules"] = rule_config.parse(options["rule"])
    return msgspec.structs.replace(plan, **fields)


def supervise_new(
    plan: Plan, *, name: str | None, folder: Path | None, as_json: bool, progress: str | None = None
) -> int:
    if plan.on_event is not None:
        split_command(plan.on_event)
    run = create_run_folder(plan.command, root=working_folder(), name=name or plan.name, folder=folder)
    write_plan(run, plan)
    try:
        return _supervise(
            run, plan, lambda reporter: supervisor.start(run, plan, [reporter]), as_json=as_json, progress=progress
        )
    except CommandNotRunnable:
        if run.exists_unchanged() and not any(isinstance(entry.event, AttemptStarted) for entry in replay(run)):
            shutil.rmtree(run.path, ignore_errors=True)  # nothing ran: do not keep an empty run folder
        raise


def supervise_resumed(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    return _supervise(run, plan, lambda reporter: supervisor.take_over(run, plan, [reporter]), as_json=as_json)


def _supervise(
    run: RunFolder,
    plan: Plan,
    supervise: Callable[[ConsoleReporter], Verdict],
    *,
    as_json: bool,
    progress: str | None = None,
) -> int:
    verdict = supervise(ConsoleReporter(run, plan=progress))
    gc.collect()  # free the state of the supervisor: the journal is about to be read again
    if not (run.exists_unchanged() and run.journal.is_file()):
        return report_removed(run, verdict, as_json=as_json)
    state, summary = write_results(run, plan)
    with contextlib.suppress(OSError):  # a closed terminal or pipe does not change the exit status
        if as_json:
            print_json(summary)
        else:
            from holdfast.render.panel import print_panel

            print_panel(run, state)
    return verdict.exit_status


def report_removed(run: RunFolder, verdict: Verdict, *, as_json: bool) -> int:
    """Report the result of a run whose folder was removed or replaced while it was running."""
    with contextlib.suppress(OSError):
        if as_json:
            fields = {"run": run.name, "dir": str(run.path), "verdict": verdict.outcome.value, "reason": verdict.reason}
            print_json({**fields, "exit_status": verdict.exit_status})
        else:
            say(
                f"{verdict.outcome.value}: {verdict.reason}. The run folder {run.path} was removed or replaced during the run: "
                "its journal is gone, nothing was written to the replacement, and the run cannot be resumed."
            )
    return verdict.exit_status


def write_results(run: RunFolder, plan: Plan) -> tuple[RunState, dict[str, Any]]:
    """Write the summary and the report of a finished run."""
    state = load_run_state(replay_redacted(run, plan))
    summary = summary_of(run, state)
    try:
        write_summary(run, summary)
    except OSError as error:
        say(f"cannot write {run.summary}: {error.strerror}")
    try:
        write_report(state, run.path, title=run.name, reference=run.reference)
    except Exception as error:  # noqa: BLE001 - the verdict is known: a failed report does not change it
        say(f"the report could not be written ({error}); try: holdfast report {run.shell_reference}")
    return state, summary
