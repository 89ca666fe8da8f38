"""Plans on the command line: read, checked, given a device, and carried out stage by stage."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.launch.command_run import fields_of, supervise_again, supervise_new, tell_removed, write_down
from holdfast.launch.interrupts import ends_what_it_started
from holdfast.launch.new_run_folder import claim
from holdfast.render.console import print_json, say
from holdfast.render.console_reporter import ConsoleReporter
from holdfast.render.summary import write_summary
from holdfast.render.text import printable
from holdfast.schema.errors import PlanInvalid, UsageError
from holdfast.schema.shell_text import shell_joined
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
"""For all checks before a plan is carried out."""


def is_plan_file(command: list[str]) -> bool:
    """A word that names a TOML file; a training is started by another name."""
    if not command or not command[0].endswith(".toml"):
        return False
    if len(command) > 1:
        raise UsageError(
            f"What follows the plan is not understood: {' '.join(command[1:4])}.",
            next_step=f"options come before the plan: holdfast run {shell_joined([*command[1:4], command[0]])}",
        )
    return True


def plan_from(path: Path, options: dict[str, Any]) -> Plan:
    """A plan file, with what was given on the command line, and only where the ground bears it."""
    from holdfast.preflight.validate_plan import survey
    from holdfast.supervisor.load_plan import open_plan

    plan = open_plan(path)
    fields = fields_of(options)
    if "budget" in fields:
        fields["budget"] = msgspec.structs.replace(plan.budget, attempts=fields["budget"].attempts)
    plan = msgspec.structs.replace(plan, **fields)
    context = survey(plan)
    for note in context.notes:
        say(note)
    problems = context.problems
    if problems:
        raise PlanInvalid(
            f"{path} cannot be carried out:\n" + "\n".join(f"  - {printable(problem)}" for problem in problems),
            next_step="mend that first; nothing has been started",
        )
    return plan


def check_first(plan: Plan, *, as_json: bool) -> bool:
    """Whether nothing speaks against starting it. What does is shown; what only warns is told in a line each."""
    from holdfast.preflight.checks.runner import check
    from holdfast.render.checks import ChecksProgress, show, warnings

    with ends_what_it_started(), ChecksProgress() as progress:
        report = check(plan=plan, skip=["plan-possible"], seconds=CHECK_S, watcher=progress)
    if report.exit_status:
        show(report, as_json=as_json)
        say("nothing was started; --no-check starts it all the same")
        return False
    for line in warnings(report):
        say(line)
    return True


def with_a_device(plan: Plan) -> Plan:
    """`auto` becomes the fastest device that told the truth."""
    from holdfast.preflight.device_selection import choose, is_asked

    if plan.trainer != "ultralytics" or not is_asked(plan):
        return plan
    with ends_what_it_started():
        chosen = choose(plan, notify=lambda words: say(f"{words} ..."))
    for line in chosen.message:
        say(line)
    if chosen.device is None:
        raise PlanInvalid("No device here can be trusted with this training.", next_step="name one: device = 'cpu'")
    return msgspec.structs.replace(plan, settings={**plan.settings, "device": chosen.device})


def supervise_plan(plan: Plan, *, name: str | None, folder: Path | None, as_json: bool) -> int:
    """One stage is a run like any other; several are a run of runs."""
    if not plan.stages:
        only = stage_plan(plan, stages_of(plan)[0])
        return supervise_new(only, name=name, folder=folder, as_json=as_json, progress=plan.name or "training")
    if plan.on_event is not None:
        split_command(plan.on_event)
    run = claim(plan.command or ["plan"], root=working_folder(), name=name or plan.name, folder=folder)
    write_plan(run, plan)
    return carry_out(run, plan, as_json=as_json)


def carry_out(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    """All stages of a plan that are not done yet."""
    from holdfast.preflight.batch_finder import fits
    from holdfast.render.report.stages import write_stages_report
    from holdfast.render.stages import print_stages_panel, stages_summary
    from holdfast.supervisor.stages import Stages

    def listeners_of(folder: RunFolder) -> list[ConsoleReporter]:
        number = int(folder.name.partition("-")[0])
        head = f"stage {number} of {len(plan.stages)}, {plan.stages[number - 1].name}"
        return [ConsoleReporter(folder, plan=head, later=epochs_after(plan, number))]

    def done(folder: RunFolder, _reached: Verdict) -> None:
        if run.is_there() and folder.is_there():
            write_down(folder, plan)

    stages = Stages(run, plan, listeners=[ConsoleReporter(run)], listeners_of=listeners_of, done=done, fits=fits)
    verdict = stages.run()
    if not (run.is_there() and run.journal.is_file()):
        return tell_removed(run, verdict, as_json=as_json)
    summary = stages_summary(run, plan)
    try:
        write_summary(run, summary)
        write_stages_report(run, plan)
    except Exception as error:  # noqa: BLE001 - the run is over and judged: a page that cannot be drawn changes nothing of it
        say(f"no report was written ({error}); try: holdfast report {run.shell_reference}")
    with contextlib.suppress(OSError):
        if as_json:
            print_json(summary)
        else:
            print_stages_panel(run, plan)
    return verdict.exit_status


def plan_changed(path: Path, *, attempts: int | None, hours: float | None) -> Plan:
    """The plan that a run goes on with, as it now stands in its file."""
    plan = with_a_device(plan_from(path, {} if attempts is None else {"max_attempts": attempts}))
    if hours is not None:
        plan = msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, hours=hours))
    return plan if plan.stages else stage_plan(plan, stages_of(plan)[0])


def plan_again(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    """Go on with it, whether it is one training or several stages."""
    return (carry_out if plan.stages else supervise_again)(run, plan, as_json=as_json)
