"""What `run` and `resume` share: from the words of the command line to a supervised run and its panel."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.act import supervisor
from holdfast.act.notify import words_of
from holdfast.judge.picture import picture_of
from holdfast.record import folder as folders
from holdfast.record.journal import replay
from holdfast.record.masking import MASK, UNREADABLE, mask_command
from holdfast.show.live import Narrator
from holdfast.show.summary import write_summary
from holdfast.words.errors import CommandNotRunnable, FolderNotWritable, UnknownRun
from holdfast.words.events import AttemptStarted
from holdfast.words.plan import HangSettings, Plan, from_toml, to_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.record.folder import RunFolder
    from holdfast.words.verdicts import Verdict


def plan_for(*, hang_after: float | None, **settings: Any) -> Plan:
    hang = HangSettings()
    if hang_after is not None:
        hang = HangSettings(floor_s=hang_after, start_floor_s=max(hang_after, 60.0), confirm_s=min(30.0, hang_after))
    return Plan(cwd=str(Path.cwd()), hang=hang, **settings)


def supervise_new(plan: Plan, *, name: str | None, folder: Path | None, as_json: bool) -> int:
    if plan.on_event is not None:
        words_of(plan.on_event)
    run = folders.create(plan.command, root=Path.cwd(), name=name, folder=folder)
    try:
        folders.write_atomically(run.plan, to_toml(recorded(plan)))
    except OSError as error:
        raise FolderNotWritable(
            f"The run folder {run.path} cannot be written: {error.strerror}.",
            next_step="make room on the disk, or choose another folder with --dir DIR",
        ) from error
    try:
        return _supervised(run, lambda narrator: supervisor.start(run, plan, [narrator]), as_json=as_json)
    except CommandNotRunnable:
        if not any(isinstance(entry.event, AttemptStarted) for entry in replay(run)):
            shutil.rmtree(run.path, ignore_errors=True)  # nothing ran: an empty record would only be in the way
        raise


def supervise_again(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    return _supervised(run, lambda narrator: supervisor.take_over(run, plan, [narrator]), as_json=as_json)


def plan_again(run: RunFolder, command: Sequence[str], **changes: Any) -> Plan:
    """The plan of a run, with what is given anew; what was not recorded because it was a secret must be."""
    try:
        plan = from_toml(run.plan.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownRun(f"The plan of {run.path} cannot be read: {error}.", look_at=str(run.plan)) from error
    given = {name: value for name, value in changes.items() if value is not None}
    if command:
        given["command"] = list(command)
    plan = msgspec.structs.replace(plan, **given)
    for name, words in (
        ("command", plan.command),
        ("--on-event", [plan.on_event or ""]),
        ("--resume-with", [plan.resume_with or ""]),
    ):
        if any(MASK in word or UNREADABLE in word for word in words):
            how = "-- COMMAND..." if name == "command" else f"{name} ..."
            raise CommandNotRunnable(
                f"The {name} of this run had something in it that was not recorded (a secret, or bytes that are no text).",
                next_step=f"give it again: holdfast resume {run.reference} {how}",
            )
    return plan


def recorded(plan: Plan) -> Plan:
    """The plan as it may be written down."""
    split = {"on_event": plan.on_event, "resume_with": plan.resume_with}
    masked = {name: shlex.join(mask_command(shlex.split(text))) for name, text in split.items() if text is not None}
    return msgspec.structs.replace(plan, command=mask_command(plan.command), **masked)


def _supervised(run: RunFolder, supervise: Callable[[Narrator], Verdict], *, as_json: bool) -> int:
    verdict = supervise(Narrator(run))
    picture = picture_of(replay(run))
    try:
        summary = write_summary(run, picture)
    except OSError as error:
        from holdfast.show.summary import summary_of

        summary = summary_of(run, picture)
        print(f"holdfast: {run.summary} cannot be written: {error.strerror}", file=sys.stderr)
    with contextlib.suppress(OSError):  # a terminal or pipe that is gone does not decide the status
        if as_json:
            print(msgspec.json.encode(summary).decode(), flush=True)
        else:
            from holdfast.show.panel import print_panel

            print_panel(run, picture)
    return verdict.exit_status
