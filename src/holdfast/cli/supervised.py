"""What `run` and `resume` share: from the words of the command line to a supervised run and its panel."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.act import supervisor
from holdfast.act.notify import words_of
from holdfast.act.stage_plan import epochs_after, stage_plan, stages_of
from holdfast.judge import tuning
from holdfast.judge.picture import picture_of
from holdfast.record import folder as folders
from holdfast.record.journal import replay
from holdfast.record.plan_file import write_plan
from holdfast.show.live import Narrator
from holdfast.show.report import write_report
from holdfast.show.summary import summary_of, write_summary
from holdfast.words.errors import CommandNotRunnable, PlanInvalid, UsageError
from holdfast.words.events import AttemptStarted
from holdfast.words.plan import Budget, HangSettings, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

    from holdfast.record.folder import RunFolder
    from holdfast.words.verdicts import Verdict


def is_plan_file(command: list[str]) -> bool:
    """A word that names a TOML file; a training is started by another name."""
    if not command or not command[0].endswith(".toml"):
        return False
    if len(command) > 1:
        raise UsageError(
            f"What follows the plan is not understood: {' '.join(command[1:4])}.",
            next_step=f"options come before the plan: holdfast run {' '.join(command[1:4])} {command[0]}",
        )
    return True


def given(context: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Those options that the user really wrote."""
    sources = {name: context.get_parameter_source(name) for name in options}
    return {
        name: options[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    }


def plan_for(command: list[str], options: dict[str, Any]) -> Plan:
    return Plan(cwd=str(Path.cwd()), command=command, **_fields(options))


def plan_from(path: Path, options: dict[str, Any]) -> Plan:
    """A plan file, with what was given on the command line, and only where the ground bears it."""
    from holdfast.act.ground import survey
    from holdfast.act.opening import open_plan

    plan = open_plan(path)
    fields = _fields(options)
    if "budget" in fields:
        fields["budget"] = msgspec.structs.replace(plan.budget, attempts=fields["budget"].attempts)
    plan = msgspec.structs.replace(plan, **fields)
    ground = survey(plan)
    for note in ground.notes:
        print(f"holdfast: {note}", file=sys.stderr)
    problems = ground.problems
    if problems:
        raise PlanInvalid(
            f"{path} cannot be carried out:\n" + "\n".join(f"  - {problem}" for problem in problems),
            next_step="mend that first; nothing has been started",
        )
    return plan


CHECK_S = 90.0
"""For all checks before a plan is carried out."""


def check_first(plan: Plan, *, as_json: bool) -> bool:
    """Whether nothing speaks against starting it. What does is shown; what only warns is told in a line each."""
    from holdfast.act.checks.running import check
    from holdfast.show.checks import ChecksProgress, show, warnings

    with ChecksProgress() as progress:
        report = check(plan=plan, skip=["plan-possible"], seconds=CHECK_S, watcher=progress)
    if report.exit_status:
        show(report, as_json=as_json)
        print("holdfast: nothing was started; --no-check starts it all the same", file=sys.stderr)
        return False
    for line in warnings(report):
        print(f"holdfast: {line}", file=sys.stderr)
    return True


def with_a_device(plan: Plan) -> Plan:
    """`auto` becomes the fastest device that told the truth."""
    from holdfast.act.choosing_device import choose, is_asked

    if plan.trainer != "ultralytics" or not is_asked(plan):
        return plan
    chosen = choose(plan, tell=lambda words: print(f"holdfast: {words} ...", file=sys.stderr, flush=True))
    for line in chosen.says:
        print(f"holdfast: {line}", file=sys.stderr)
    if chosen.device is None:
        raise PlanInvalid("No device here can be trusted with this training.", next_step="name one: device = 'cpu'")
    return msgspec.structs.replace(plan, settings={**plan.settings, "device": chosen.device})


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the command line as fields of a plan."""
    names = {"backoff": "backoff_s", "max_loss": "max_loss_s"}
    known = {"max_attempts", "hang_after", "rule"}
    fields = {names.get(name, name): value for name, value in options.items() if name not in known}
    if "max_attempts" in options:
        fields["budget"] = Budget(attempts=options["max_attempts"])
    if options.get("hang_after") is not None:
        after = options["hang_after"]
        fields["hang"] = HangSettings(floor_s=after, start_floor_s=max(after, 60.0), confirm_s=min(30.0, after))
    if options.get("rule"):
        fields["rules"] = tuning.parse(options["rule"])
    return fields


def supervise_new(
    plan: Plan, *, name: str | None, folder: Path | None, as_json: bool, progress: str | None = None
) -> int:
    if plan.on_event is not None:
        words_of(plan.on_event)
    run = folders.create(plan.command, root=Path.cwd(), name=name or plan.name, folder=folder)
    write_plan(run, plan)
    try:
        return _supervised(
            run, lambda narrator: supervisor.start(run, plan, [narrator]), as_json=as_json, progress=progress
        )
    except CommandNotRunnable:
        if not any(isinstance(entry.event, AttemptStarted) for entry in replay(run)):
            shutil.rmtree(run.path, ignore_errors=True)  # nothing ran: an empty record would only be in the way
        raise


def supervise_plan(plan: Plan, *, name: str | None, folder: Path | None, as_json: bool) -> int:
    """One stage is a run like any other; several are a run of runs."""
    if not plan.stages:
        only = stage_plan(plan, stages_of(plan)[0])
        return supervise_new(only, name=name, folder=folder, as_json=as_json, progress=plan.name or "training")
    if plan.on_event is not None:
        words_of(plan.on_event)
    run = folders.create(plan.command or ["plan"], root=Path.cwd(), name=name or plan.name, folder=folder)
    write_plan(run, plan)
    return carry_out(run, plan, as_json=as_json)


def carry_out(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    """All stages of a plan that are not done yet."""
    from holdfast.act.fitting import fits
    from holdfast.act.stages import Stages
    from holdfast.show.course import course_summary, print_course_panel
    from holdfast.show.report.course import write_course_report

    def listeners_of(folder: RunFolder) -> list[Narrator]:
        number = int(folder.name.partition("-")[0])
        head = f"stage {number} of {len(plan.stages)}, {plan.stages[number - 1].name}"
        return [Narrator(folder, plan=head, later=epochs_after(plan, number))]

    def done(folder: RunFolder, _reached: Verdict) -> None:
        _write_down(folder)

    stages = Stages(run, plan, listeners=[Narrator(run)], listeners_of=listeners_of, done=done, fits=fits)
    verdict = stages.carry_out()
    summary = course_summary(run)
    try:
        write_summary(run, summary)
        write_course_report(run)
    except Exception as error:  # noqa: BLE001 - the run is over and judged: a page that cannot be drawn changes nothing of it
        print(f"holdfast: no report was written ({error}); try: holdfast report {run.reference}", file=sys.stderr)
    with contextlib.suppress(OSError):
        if as_json:
            print(msgspec.json.encode(summary).decode(), flush=True)
        else:
            print_course_panel(run)
    return verdict.exit_status


def supervise_again(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    if plan.stages:
        return carry_out(run, plan, as_json=as_json)
    return _supervised(run, lambda narrator: supervisor.take_over(run, plan, [narrator]), as_json=as_json)


def _supervised(
    run: RunFolder, supervise: Callable[[Narrator], Verdict], *, as_json: bool, progress: str | None = None
) -> int:
    verdict = supervise(Narrator(run, plan=progress))
    summary = _write_down(run)
    with contextlib.suppress(OSError):  # a terminal or pipe that is gone does not decide the status
        if as_json:
            print(msgspec.json.encode(summary).decode(), flush=True)
        else:
            from holdfast.show.panel import print_panel

            print_panel(run, picture_of(replay(run)))
    return verdict.exit_status


def _write_down(run: RunFolder) -> dict[str, Any]:
    """The summary and the report of a run that is over."""
    picture = picture_of(replay(run))
    summary = summary_of(run, picture)
    try:
        write_summary(run, summary)
    except OSError as error:
        print(f"holdfast: {run.summary} cannot be written: {error.strerror}", file=sys.stderr)
    try:
        write_report(picture, run.path, title=run.name, reference=run.reference)
    except Exception as error:  # noqa: BLE001 - the run is over and judged: a page that cannot be drawn changes nothing of it
        print(f"holdfast: no report was written ({error}); try: holdfast report {run.reference}", file=sys.stderr)
    return summary
