"""What `run` and `resume` share: from the words of the command line to a supervised run and its panel."""

from __future__ import annotations

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
from holdfast.record.masking import mask_command
from holdfast.show.live import Narrator
from holdfast.show.summary import write_summary
from holdfast.words.errors import CommandNotRunnable, FolderNotWritable
from holdfast.words.plan import HangSettings, Plan, to_toml

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
        folders.write_atomically(run.plan, to_toml(msgspec.structs.replace(plan, command=mask_command(plan.command))))
    except OSError as error:
        raise FolderNotWritable(
            f"The run folder {run.path} cannot be written: {error.strerror}.",
            next_step="make room on the disk, or choose another folder with --dir DIR",
        ) from error
    try:
        return _supervised(run, lambda narrator: supervisor.start(run, plan, [narrator]), as_json=as_json)
    except CommandNotRunnable:
        shutil.rmtree(run.path, ignore_errors=True)  # nothing ran: an empty record would only be in the way
        raise


def supervise_again(run: RunFolder, plan: Plan, *, as_json: bool) -> int:
    return _supervised(run, lambda narrator: supervisor.take_over(run, plan, [narrator]), as_json=as_json)


def command_of(run: RunFolder, plan: Plan, given: Sequence[str]) -> list[str]:
    """The command to go on with: as given, else as planned, unless parts of it were masked."""
    if given:
        return list(given)
    if plan.command != mask_command(plan.command) or any("***" in word for word in plan.command):
        raise CommandNotRunnable(
            "The command had a secret in it, which was not recorded.",
            next_step=f"give it again: holdfast resume {run.reference} -- COMMAND...",
        )
    return plan.command


def _supervised(run: RunFolder, supervise: Callable[[Narrator], Verdict], *, as_json: bool) -> int:
    verdict = supervise(Narrator(run))
    picture = picture_of(replay(run))
    try:
        summary = write_summary(run, picture)
    except OSError as error:
        from holdfast.show.summary import summary_of

        summary = summary_of(run, picture)
        print(f"holdfast: {run.summary} cannot be written: {error.strerror}", file=sys.stderr)
    if as_json:
        print(msgspec.json.encode(summary).decode(), flush=True)
    else:
        from rich.console import Console

        from holdfast.show.panel import panel

        Console(stderr=True).print(panel(run, picture))
    return verdict.exit_status
