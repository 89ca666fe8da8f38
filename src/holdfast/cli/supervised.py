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
from holdfast.judge import tuning
from holdfast.judge.picture import picture_of
from holdfast.record import folder as folders
from holdfast.record.journal import replay
from holdfast.record.plan_file import write_plan
from holdfast.show.live import Narrator
from holdfast.show.report import write_report
from holdfast.show.summary import summary_of, write_summary
from holdfast.words.errors import CommandNotRunnable
from holdfast.words.events import AttemptStarted
from holdfast.words.plan import Budget, HangSettings, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.record.folder import RunFolder
    from holdfast.words.verdicts import Verdict


def plan_for(*, attempts: int, hang_after: float | None, rules: list[str], **settings: Any) -> Plan:
    hang = HangSettings()
    if hang_after is not None:
        hang = HangSettings(floor_s=hang_after, start_floor_s=max(hang_after, 60.0), confirm_s=min(30.0, hang_after))
    return Plan(cwd=str(Path.cwd()), budget=Budget(attempts=attempts), hang=hang, rules=tuning.parse(rules), **settings)


def supervise_new(plan: Plan, *, name: str | None, folder: Path | None, as_json: bool) -> int:
    if plan.on_event is not None:
        words_of(plan.on_event)
    run = folders.create(plan.command, root=Path.cwd(), name=name, folder=folder)
    write_plan(run, plan)
    try:
        return _supervised(run, lambda narrator: supervisor.start(run, plan, [narrator]), as_json=as_json)
    except CommandNotRunnable:
        if not any(isinstance(entry.event, AttemptStarted) for entry in replay(run)):
            shutil.rmtree(run.path, ignore_errors=True)  # nothing ran: an empty record would only be in the way
        raise


def supervise_again(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    return _supervised(run, lambda narrator: supervisor.take_over(run, plan, [narrator]), as_json=as_json)


def _supervised(run: RunFolder, supervise: Callable[[Narrator], Verdict], *, as_json: bool) -> int:
    verdict = supervise(Narrator(run))
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
    with contextlib.suppress(OSError):  # a terminal or pipe that is gone does not decide the status
        if as_json:
            print(msgspec.json.encode(summary).decode(), flush=True)
        else:
            from holdfast.show.panel import print_panel

            print_panel(run, picture)
    return verdict.exit_status
