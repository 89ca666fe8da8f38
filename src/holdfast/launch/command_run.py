"""What `run` and `resume` share for one training: from the words of the command line to a supervised run and its panel."""

from __future__ import annotations

import contextlib
import gc
import shutil
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis import rule_config
from holdfast.diagnosis.run_state import load_run_state
from holdfast.launch.new_run_folder import claim
from holdfast.render.console import print_json, say
from holdfast.render.console_reporter import ConsoleReporter
from holdfast.render.report import write_report
from holdfast.render.summary import summary_of, write_summary
from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.events import AttemptStarted
from holdfast.schema.plan import Budget, HangSettings, Plan
from holdfast.storage.folder import working_folder
from holdfast.storage.journal import replay
from holdfast.storage.plan_copy import write_plan
from holdfast.storage.redact import shown
from holdfast.supervisor import supervisor
from holdfast.supervisor.notify import split_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import typer

    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.verdicts import Verdict
    from holdfast.storage.folder import RunFolder


def given(context: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Those options that the user really wrote."""
    sources = {name: context.get_parameter_source(name) for name in options}
    return {
        name: options[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    }


def plan_for(command: list[str], options: dict[str, Any]) -> Plan:
    return Plan(cwd=str(working_folder()), command=command, **fields_of(options))


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the command line as fields of a plan."""
    names = {"backoff": "backoff_s", "max_lost_work": "max_lost_work_s"}
    known = {"max_attempts", "hang_after", "rule"}
    fields = {names.get(name, name): value for name, value in options.items() if name not in known}
    if "max_attempts" in options:
        fields["budget"] = Budget(attempts=options["max_attempts"])
    if options.get("hang_after") is not None:
        after = options["hang_after"]
        fields["hang"] = HangSettings(floor_s=after, start_floor_s=max(after, 60.0), confirm_s=min(30.0, after))
    if options.get("rule"):
        fields["rules"] = rule_config.parse(options["rule"])
    return fields


def supervise_new(
    plan: Plan, *, name: str | None, folder: Path | None, as_json: bool, progress: str | None = None
) -> int:
    if plan.on_event is not None:
        split_command(plan.on_event)
    run = claim(plan.command, root=working_folder(), name=name or plan.name, folder=folder)
    write_plan(run, plan)
    try:
        return _supervised(
            run, plan, lambda narrator: supervisor.start(run, plan, [narrator]), as_json=as_json, progress=progress
        )
    except CommandNotRunnable:
        if run.is_there() and not any(isinstance(entry.event, AttemptStarted) for entry in replay(run)):
            shutil.rmtree(run.path, ignore_errors=True)  # nothing ran: an empty record would only be in the way
        raise


def supervise_again(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    return _supervised(run, plan, lambda narrator: supervisor.take_over(run, plan, [narrator]), as_json=as_json)


def _supervised(
    run: RunFolder,
    plan: Plan,
    supervise: Callable[[ConsoleReporter], Verdict],
    *,
    as_json: bool,
    progress: str | None = None,
) -> int:
    verdict = supervise(ConsoleReporter(run, plan=progress))
    gc.collect()  # what the supervisor knew is not needed any more, and is about to be read again from the record
    if not (run.is_there() and run.journal.is_file()):
        return tell_removed(run, verdict, as_json=as_json)
    state, summary = write_down(run, plan)
    with contextlib.suppress(OSError):  # a terminal or pipe that is gone does not decide the status
        if as_json:
            print_json(summary)
        else:
            from holdfast.render.panel import print_panel

            print_panel(run, state)
    return verdict.exit_status


def tell_removed(run: RunFolder, verdict: Verdict, *, as_json: bool) -> int:
    """Of a run whose folder was removed or replaced while it lived there is no record there, but what it came to is known."""
    with contextlib.suppress(OSError):
        if as_json:
            known = {"run": run.name, "dir": str(run.path), "verdict": verdict.outcome.value, "reason": verdict.reason}
            print_json({**known, "exit_status": verdict.exit_status})
        else:
            say(
                f"{verdict.outcome.value}: {verdict.reason}. The run folder {run.path} was removed or replaced while the run lived: "
                "its record is not there any more, nothing was written into what is, and it cannot be resumed."
            )
    return verdict.exit_status


def write_down(run: RunFolder, plan: Plan) -> tuple[RunState, dict[str, Any]]:
    """The summary and the report of a run that is over."""
    state = load_run_state(shown(run, plan))
    summary = summary_of(run, state)
    try:
        write_summary(run, summary)
    except OSError as error:
        say(f"{run.summary} cannot be written: {error.strerror}")
    try:
        write_report(state, run.path, title=run.name, reference=run.reference)
    except Exception as error:  # noqa: BLE001 - the run is over and judged: a page that cannot be drawn changes nothing of it
        say(f"no report was written ({error}); try: holdfast report {run.shell_reference}")
    return state, summary
