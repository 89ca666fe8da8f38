"""Whose a run is. What another user left in a folder is read only where somebody asks for it by name, and is never acted on.

A run's plan is a command. Whoever puts a run into a shared folder could otherwise have that command run with the rights of
the next user who types `holdfast resume` there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.schema.errors import UntrustedRun
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.safe_files import untrusted_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.storage.folder import RunFolder

PARTS = ("", "plan.toml", "journal.jsonl", "attempts", "snapshots", "stages")
"""The run folder and what in it decides what is run, read or written."""
MAX_OWNERS_NAMED = 3


class Foreign(NamedTuple):
    """Something that belongs to a user whom we do not trust."""

    path: Path
    owner: str


def foreign_folder(folders: Iterable[Path]) -> Foreign | None:
    """The first of these that another user owns. What is not there belongs to nobody."""
    for folder in folders:
        with contextlib.suppress(OSError):
            owner = untrusted_owner(folder)
            if owner is not None:
                return Foreign(folder, owner)
    return None


def foreign_above(run: Path) -> Foreign | None:
    """A folder above a run whose owner is another user, who could exchange the run for another.

    Those that Holdfast makes count (`runs` and `.holdfast`, a run above its stages), and of a run elsewhere the one it lies in. Where that is
    sticky, as /tmp is, others cannot rename what is ours; and the owner of the working folder decides what is run there anyway, as in a project that
    is mounted into a container. The mode is not asked: who lets others write there has decided so.
    """
    paths = dict.fromkeys((run.absolute(), run.resolve()))
    return foreign_folder(folder for path in paths for folder in _above(path))


def _above(run: Path) -> Iterator[Path]:
    parent = run.parent
    if parent.name == "stages":
        yield from (parent, parent.parent)
        yield from _above(parent.parent)
    elif (parent.parent.name, parent.name) == (".holdfast", "runs"):
        yield from (parent, parent.parent)
    elif not _is_sticky_or_working_folder(parent):
        yield parent


def _is_sticky_or_working_folder(folder: Path) -> bool:
    try:
        status = folder.stat()
        return bool(status.st_mode & stat.S_ISVTX) or os.path.samestat(status, Path().stat())
    except OSError:
        return False


def foreign_part(run: Path) -> Foreign | None:
    return foreign_folder(run / part for part in PARTS)


def refuse_foreign(run: RunFolder, stages: Iterable[RunFolder] = ()) -> None:
    """Raise UntrustedRun where a part of the run, of one of its stages, or a folder above them belongs to another user."""
    above = foreign_above(run.path)
    if above is not None:
        raise UntrustedRun(
            f"{above.path} belongs to {above.owner}: what lies in it is not resumed, because its owner could put another "
            "run, and so another command, in the place of yours.",
            next_step=f"copy the run into a folder of your own (cp -r {shell_quoted(run.path)} COPY) and resume the copy; or chown that "
            "folder to you",
            look_at=str(run.plan),
        )
    for folder in (run, *stages):
        foreign = foreign_part(folder.path)
        if foreign is not None:
            raise UntrustedRun(
                f"{foreign.path} belongs to {foreign.owner}: it is not resumed, because its plan is a command that "
                "would run with your rights.",
                next_step=f"read its plan; if you trust it, make it yours: copy the folder (cp -r {shell_quoted(run.path)} COPY) "
                f"and resume the copy, or chown -R it to you",
                look_at=str(run.plan),
            )


def describe_passed_over(foreign: list[Foreign]) -> str:
    """One line, however many there are."""
    owners = list(dict.fromkeys(each.owner for each in foreign))
    more = f" and {len(owners) - MAX_OWNERS_NAMED} more users" if len(owners) > MAX_OWNERS_NAMED else ""
    whose = f"{', '.join(owners[:MAX_OWNERS_NAMED])}{more}"
    what = str(foreign[0].path) if len(foreign) == 1 else f"{len(foreign)} runs in {foreign[0].path.parent}"
    belongs = "belongs" if len(foreign) == 1 else "belong"
    return f"passed over {what}, which {belongs} to {whose}: what another user left is not acted on"
