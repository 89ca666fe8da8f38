"""Running a plan file: load and check it, choose a device, and run it stage by stage."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.frameworks import by_name
from holdfast.launch.command_run import apply_options, report_removed, supervise_new, supervise_resumed, write_results
from holdfast.launch.interrupts import terminate_helpers_on_signal
from holdfast.launch.new_run_folder import create_run_folder
from holdfast.render.console import print_json, say
from holdfast.render.console_reporter import ConsoleReporter
from holdfast.render.summary import write_summary
from holdfast.render.text import printable
from holdfast.schema.errors import PlanInvalid, UsageError
from holdfast.schema.shell_text import shell_join
from holdfast.storage.folder import working_folder
from holdfast.storage.plan_copy import write_plan
from holdfast.supervisor.notify import split_command
from holdfast.supervisor.stage_command import epochs_after, stage_plan, stages_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Verdict
    from holdfast.storage.folder import RunFolder

CHECK_S = 90.0
"""Time limit for all checks before a plan is run."""


def is_plan_file(command: list[str]) -> bool:
    """Return True if the first word is a TOML file, that is, not a training command."""
    if not command or not command[0].endswith(".toml"):
        return False
    if len(command) > 1:
        raise UsageError(
            f"Unexpected arguments after the plan: {' '.join(command[1:4])}.",
            next_step=f"write options before the plan: holdfast run {shell_join([*command[1:4], command[0]])}",
        )
    return True


def load_plan(path: Path, options: dict[str, Any]) -> Plan:
    """Load a plan file and apply the command-line options. Raise PlanInvalid if it cannot be run here."""
    from holdfast.preflight.validate_plan import validate
    from holdfast.supervisor.load_plan import open_plan

    plan = apply_options(open_plan(path), options)
    context = validate(plan)
    for note in context.notes:
        say(note)
    problems = context.problems
    if problems:
        raise PlanInvalid(
            f"{path} cannot be run:\n" + "\n".join(f"  - {printable(problem)}" for problem in problems),
            next_step="fix these problems first; nothing has been started",
        )
    return plan


def passes_checks(plan: Plan, *, as_json: bool) -> bool:
    """Run the checks and return True if none failed. Show failures in full, and warnings in one line each."""
    from holdfast.preflight.checks.runner import check
    from holdfast.render.checks import ChecksProgress, show, warnings

    with terminate_helpers_on_signal(), ChecksProgress() as progress:
        report = check(plan=plan, skip=["plan-possible"], seconds=CHECK_S, progress=progress)
    if report.exit_status:
        show(report, as_json=as_json)
        say("the run was not started; to start it anyway, use --no-check")
        return False
    for line in warnings(report):
        say(line)
    return True


def choose_device(plan: Plan) -> Plan:
    """Replace `auto` by the fastest device that computes correctly."""
    with terminate_helpers_on_signal():
        chosen = by_name(plan.trainer).choose_device(plan, notify=lambda message: say(f"{message} ..."))
    if chosen is None:
        return plan
    for line in chosen.message:
        say(line)
    if chosen.device is None:
        raise PlanInvalid(
            "No usable device was found for this training.", next_step="set one in the plan: device = 'cpu'"
        )
    return msgspec.structs.replace(plan, settings={**plan.settings, "device": chosen.device})


def supervise_plan(plan: Plan, *, name: str | None, folder: Path | None, as_json: bool) -> int:
    """Run a plan. One stage is an ordinary run; with several, each stage is a run inside the run."""
    if not plan.stages:
        only = stage_plan(plan, stages_of(plan)[0])
        return supervise_new(only, name=name, folder=folder, as_json=as_json, progress=plan.name or "training")
    if plan.on_event is not None:
        split_command(plan.on_event)
    run = create_run_folder(plan.command or ["plan"], root=working_folder(), name=name or plan.name, folder=folder)
    write_plan(run, plan)
    return run_stages(run, plan, as_json=as_json)


def run_stages(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    """Run all stages of a plan that are not done yet."""
    from holdfast.render.report.stages import write_stages_report
    from holdfast.render.stages import print_stages_panel, stages_summary
    from holdfast.supervisor.stages import Stages

    def listeners_of(folder: RunFolder) -> list[ConsoleReporter]:
        number = int(folder.name.partition("-")[0])
        title = f"stage {number} of {len(plan.stages)}, {plan.stages[number - 1].name}"
        return [ConsoleReporter(folder, plan=title, later=epochs_after(plan, number))]

    def done(folder: RunFolder, _reached: Verdict) -> None:
        if run.exists_unchanged() and folder.exists_unchanged():
            write_results(folder, plan)

    stages = Stages(
        run,
        plan,
        listeners=[ConsoleReporter(run)],
        listeners_of=listeners_of,
        done=done,
        fits=by_name(plan.trainer).fits,
    )
    verdict = stages.run()
    if not (run.exists_unchanged() and run.journal.is_file()):
        return report_removed(run, verdict, as_json=as_json)
    summary = stages_summary(run, plan)
    try:
        write_summary(run, summary)
        write_stages_report(run, plan)
    except Exception as error:  # noqa: BLE001 - the verdict is known: a failed report does not change it
        say(f"the report could not be written ({error}); try: holdfast report {run.shell_reference}")
    with contextlib.suppress(OSError):
        if as_json:
            print_json(summary)
        else:
            print_stages_panel(run, plan)
    return verdict.exit_status


def load_changed_plan(path: Path, options: dict[str, Any]) -> Plan:
    """Load the plan with which to resume a run, from its changed file."""
    plan = choose_device(load_plan(path, options))
    return plan if plan.stages else stage_plan(plan, stages_of(plan)[0])


def resume_plan(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    """Resume a run, whether it has one training or several stages."""
    return (run_stages if plan.stages else supervise_resumed)(run, plan, as_json=as_json)
