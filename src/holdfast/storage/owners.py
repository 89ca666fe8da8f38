"""Ownership of runs. A run of another user is only read if it is requested by name, and it is never resumed.

The plan of a run contains a command. If any run were resumed, someone who puts a run into a shared folder could have
that command run with the permissions of the next user who types `holdfast resume` there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.schema.errors import UntrustedRun
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.safe_files import untrusted_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.storage.folder import RunFolder

PARTS = ("", "plan.toml", "journal.jsonl", "attempts", "snapshots", "stages")
"""The run folder, and its parts that determine what is run, read or written."""
MAX_OWNERS_NAMED = 3


class ForeignPath(NamedTuple):
    """A path that belongs to an untrusted user."""

    path: Path
    owner: str


def find_foreign_folder(folders: Iterable[Path]) -> ForeignPath | None:
    """Return the first of these paths that another user owns. Missing paths are ignored."""
    for folder in folders:
        with contextlib.suppress(OSError):
            owner = untrusted_owner(folder)
            if owner is not None:
                return ForeignPath(folder, owner)
    return None


def find_foreign_parent(run: Path) -> ForeignPath | None:
    """Return a parent folder of a run that belongs to another user, who could replace the run.

    This checks the folders that Holdfast creates (`runs` and `.holdfast`, and the run of a stage). For a run elsewhere
    it checks the direct parent, with two exceptions. In a sticky folder such as /tmp, others cannot rename our files.
    The owner of the working folder decides what is run there anyway, for example in a project that is mounted into a
    container. The mode is not checked: making a folder writable for others is a deliberate decision.
    """
    paths = dict.fromkeys((run.absolute(), run.resolve()))
    return find_foreign_folder(folder for path in paths for folder in _parents_to_check(path))


def _parents_to_check(run: Path) -> Iterator[Path]:
    parent = run.parent
    if parent.name == "stages":
        yield from (parent, parent.parent)
        yield from _parents_to_check(parent.parent)
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


def find_foreign_part(run: Path) -> ForeignPath | None:
    return find_foreign_folder(run / part for part in PARTS)


def refuse_foreign(run: RunFolder, stages: Iterable[RunFolder] = ()) -> None:
    """Raise UntrustedRun if a part of the run or of a stage, or a parent folder, belongs to another user."""
    parent = find_foreign_parent(run.path)
    if parent is not None:
        raise UntrustedRun(
            f"{parent.path} belongs to {parent.owner}: runs in it are not resumed, because the owner could replace your run, "
            "and so its command, with another.",
            next_step=f"copy the run to a folder of your own (cp -r {shell_quote(run.path)} COPY) and resume the copy; or change the "
            "owner of that folder to yourself (chown)",
            look_at=str(run.plan),
        )
    for folder in (run, *stages):
        foreign = find_foreign_part(folder.path)
        if foreign is not None:
            raise UntrustedRun(
                f"{foreign.path} belongs to {foreign.owner}: it is not resumed, because the command in its plan "
                "would run with your permissions.",
                next_step=f"read its plan; if you trust it, copy the folder (cp -r {shell_quote(run.path)} COPY) "
                f"and resume the copy, or change its owner to yourself (chown -R)",
                look_at=str(run.plan),
            )


def describe_skipped(foreign: list[ForeignPath]) -> str:
    """Return one line about all skipped runs."""
    owners = list(dict.fromkeys(path.owner for path in foreign))
    more = f" and {len(owners) - MAX_OWNERS_NAMED} more users" if len(owners) > MAX_OWNERS_NAMED else ""
    whose = f"{', '.join(owners[:MAX_OWNERS_NAMED])}{more}"
    what = str(foreign[0].path) if len(foreign) == 1 else f"{len(foreign)} runs in {foreign[0].path.parent}"
    belongs = "belongs" if len(foreign) == 1 else "belong"
    return f"skipped {what}, which {belongs} to {whose}: Holdfast does not act on runs of other users"
