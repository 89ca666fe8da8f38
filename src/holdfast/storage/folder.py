"""The run folder: all paths of a run in one place, and how to find a run."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.probe.holdfast_probe import protocol
from holdfast.schema.errors import FolderGone, FolderNotWritable, RunExists, UnknownRun, UsageError
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.owners import (
    ForeignPath,
    describe_skipped,
    find_foreign_folder,
    find_foreign_parent,
    find_foreign_part,
)
from holdfast.storage.safe_files import make_folders, open_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNS = Path(".holdfast") / "runs"
SHARED_MODE, PRIVATE_MODE = 0o755, 0o700
"""Modes of `.holdfast` and `runs`, and of a run folder. A umask can only remove permissions from them."""
MAX_RANK_FILES = 256
"""Per attempt. A part of each file is in memory while they are read together in the order of their events."""
MAX_STAGES = 1000
_RANK_FILE = re.compile(r"rank-(\d{1,6})(-pid-\d{1,10})?\.jsonl", re.ASCII)
_STAGE_FOLDER = re.compile(r"(\d{1,6})(?:-.*)?", re.ASCII | re.DOTALL)
FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Valid names of runs and stages: they become folder names."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def parse_rank_file_name(name: str) -> tuple[int, bool]:
    """Return the rank in the name of an event file, and whether the file belongs to the rank's first process.

    Raise ValueError for other names.
    """
    match = _RANK_FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"not the event file of a rank: {name!r}")
    return int(match[1]), match[2] is None


@dataclass(frozen=True)
class AttemptFolder:
    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def stdout_log(self) -> Path:
        return self.path / "stdout.log"

    @property
    def stderr_log(self) -> Path:
        return self.path / "stderr.log"

    @property
    def saved(self) -> Path:
        """The checkpoint backup: copies of what this attempt saved."""
        return self.path / "saved"

    @property
    def interpreters(self) -> Path:
        return self.path / protocol.INTERPRETERS_FILE

    def stacks(self, pid: int) -> Path:
        return self.path / protocol.stack_file(pid)

    def rank_files(self) -> list[Path]:
        """Return the files with the name of a rank's event file. Ignore all others."""
        names = [name for name in _list_names(self.path) if _RANK_FILE.fullmatch(name)]
        first_processes_first = sorted(
            names, key=lambda name: (not parse_rank_file_name(name)[1], parse_rank_file_name(name)[0], name)
        )
        return [self.path / name for name in first_processes_first[:MAX_RANK_FILES]]


@dataclass(frozen=True)
class RunFolder:
    path: Path
    _identity: tuple[int, int] | None = field(init=False, compare=False, repr=False)
    """Device and inode of the folder when this object was created."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_identity", _get_identity(self.path))

    def exists_unchanged(self) -> bool:
        """Return True if the original folder still exists. Another folder in its place, or a link, does not count."""
        current = _get_identity(self.path)
        return current is not None and self._identity in (None, current)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def reference(self) -> str:
        """What the user types to refer to this run: its name, or its path if it is not in the runs folder."""
        in_runs_folder = self.path.parent.parts[-2:] == RUNS.parts and not self.name.startswith("-")
        return self.name if in_runs_folder else str(self.path)

    @property
    def shell_reference(self) -> str:
        """`reference`, quoted for a shell, for use in suggested commands."""
        return shell_quote(self.reference)

    @property
    def plan(self) -> Path:
        return self.path / "plan.toml"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def snapshot_now(self) -> Path:
        """The supervisor touches this file to request a snapshot immediately."""
        return self.path / "snapshot-now"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def notifications(self) -> Path:
        """Output of the user's --on-event command."""
        return self.path / "on-event.log"

    @property
    def stages(self) -> Path:
        """Contains a run folder for each stage."""
        return self.path / "stages"

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(self.path / "attempts" / str(number))

    def attempts(self) -> list[AttemptFolder]:
        """Return the existing attempt folders in order."""
        try:
            names = [entry.name for entry in os.scandir(self.path / "attempts") if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return [self.attempt(number) for number in sorted(int(name) for name in names if _NUMBER.fullmatch(name))]

    def make_attempt(self, number: int) -> AttemptFolder | None:
        """Create the folder of an attempt. Return None if this number already exists."""
        folder = self.attempt(number)
        make_folders(self.path, folder.path.parent, PRIVATE_MODE)
        try:
            folder.path.mkdir(mode=PRIVATE_MODE)
        except FileExistsError:
            return None
        return folder


def create(command: Sequence[str], *, root: Path, name: str | None = None, folder: Path | None = None) -> RunFolder:
    """Create a run folder: `folder` itself if given, otherwise the next free `<name>-<n>` under `root`."""
    refuse_bad_name(name)
    try:
        path = (
            _create_exact(folder) if folder is not None else _create_next(root / RUNS, name or derive_run_name(command))
        )
        write_new(path / ".gitignore", "*\n")
        (path / "attempts").mkdir(mode=PRIVATE_MODE)
    except OSError as error:
        where = folder or root / RUNS
        raise FolderNotWritable(
            f"The run folder cannot be created in {where}: {error.strerror}.",
            next_step="use --dir DIR to choose a folder that is writable and has enough space",
        ) from error
    return RunFolder(path)


def make_stage(run: RunFolder, number: int, name: str) -> RunFolder:
    """Return the run folder of a stage. Create it if needed."""
    if not run.exists_unchanged():
        raise FolderGone(
            f"The run folder {run.path} was removed or replaced during the run.",
            next_step="start a new run; nothing was written to the folder that is there now",
        )
    suffix = to_folder_name(name, "")
    path = run.stages / (f"{number}-{suffix}" if suffix and suffix != str(number) else str(number))
    try:
        make_folders(run.path, path / "attempts", PRIVATE_MODE)
    except OSError as error:
        raise FolderNotWritable(
            f"The folder of stage {name} cannot be created in {run.stages}: {error.strerror}.",
            next_step=f"free some disk space, then: holdfast resume {run.shell_reference}",
        ) from error
    return RunFolder(path)


def refuse_links(run: RunFolder) -> None:
    """Raise FolderNotWritable if a folder of this run is a symlink: files would be written somewhere else."""
    attempts = run.path / "attempts"
    for path in (attempts, run.stages, run.snapshots, *_find_links(attempts), *_find_links(run.stages)):
        if path.is_symlink():
            raise FolderNotWritable(
                f"{path} is a symlink, and Holdfast does not write a run through a symlink.",
                next_step="replace the symlink with the folder it points to, or remove it if you do not know where it comes from",
                look_at=str(path),
            )


def _find_links(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def stage_folders(run: RunFolder) -> list[RunFolder]:
    """Return the run folders of the stages in order."""
    numbered = [(int(match[1]), name) for name in _list_names(run.stages) if (match := _STAGE_FOLDER.fullmatch(name))]
    paths = [run.stages / name for _, name in sorted(numbered) if _is_run(run.stages / name)]
    return [RunFolder(path) for path in paths[:MAX_STAGES]]


def working_folder() -> Path:
    """Return the current working folder. Raise FolderGone if it has been removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise FolderGone(
            f"The current working folder no longer exists: {error.strerror}.",
            next_step="change to an existing folder (cd ~, or cd back into it if it was recreated), then try again",
        ) from error


def find(reference: str | None, *, root: Path, notify: Callable[[str], None] = lambda _: None) -> RunFolder:
    """Find a run by path, by `name-n`, by name (its newest run), or the newest of all runs.

    Runs of other users are only found by a reference that names them. Otherwise they are skipped and reported through
    `notify`. Call `owners.refuse_foreign` before acting on the result.
    """
    if reference is not None:
        path = Path(reference)
        if _is_run(path):
            return RunFolder(path.resolve())
    runs, foreign = _search(root)
    if foreign and reference is None:
        notify(describe_skipped(foreign))
    pattern = re.compile(re.escape(reference or "") + r"(?:-\d+)?")
    for run in runs:
        if reference is None or pattern.fullmatch(run.name):
            return run
    for run in _sort_newest_first([other.path for other in foreign]):
        if reference is not None and pattern.fullmatch(run.name):
            return run
    newest = ", ".join(run.name for run in runs[:5])
    if reference is None:
        raise UnknownRun(
            f"There is no run {'of yours ' if foreign else ''}in {root / RUNS} yet.",
            next_step="start one: holdfast run -- python train.py",
        )
    raise UnknownRun(
        f"There is no run named {reference!r}, and no run folder at that path.",
        next_step=f"use one of the newest runs: {newest}" if newest else "start one: holdfast run -- python train.py",
        look_at=str(root / RUNS),
    )


def refuse_bad_name(name: str | None) -> None:
    """Raise UsageError for an unsafe name. It becomes part of a path and is printed to a terminal."""
    if name is not None and not FOLDER_NAME.fullmatch(name):
        raise UsageError(
            f"--name {name[:80]!r} is not a valid run name: it must be usable as a folder name.",
            next_step="use at most 64 letters, digits, dots, - and _, starting with a letter or digit; to choose the folder, use --dir DIR",
        )


def to_folder_name(name: str, default: str) -> str:
    """Return the closest valid folder name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:64] or default


def derive_run_name(command: Sequence[str]) -> str:
    """Return the name of the script without extension: the first Python file, else the module, else the program."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1].rpartition(".")[2]
    stem = Path(script or command[0]).stem
    return to_folder_name(stem, "run")


def write_new(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a new file. Raise FileExistsError if the name exists, even as a dangling symlink; and OSError."""
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.write(text)


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file so that it always has either its complete old or its complete new text.

    A symlink with that name is replaced, not followed.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}")
    handle = open_handle(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _create_exact(folder: Path) -> Path:
    if _is_run(folder):
        raise RunExists(
            f"{folder} already contains a run.",
            next_step=f"resume it: holdfast resume {shell_quote(folder)}; or choose another --dir",
        )
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(exist_ok=True, mode=SHARED_MODE)
    _refuse_foreign_place(find_foreign_parent(folder))
    folder.mkdir(exist_ok=True, mode=PRIVATE_MODE)
    if any(folder.iterdir()):
        raise RunExists(f"{folder} is not empty.", next_step="use a new or empty folder for --dir")
    _refuse_foreign_place(find_foreign_folder([folder]))
    folder.chmod(PRIVATE_MODE)
    return folder.resolve()


def _create_next(runs: Path, name: str) -> Path:
    for folder in (runs.parent, runs):
        folder.mkdir(exist_ok=True, mode=SHARED_MODE)
        _refuse_foreign_place(find_foreign_folder([folder]))
    pattern = re.compile(re.escape(name) + r"-(\d{1,9})", re.ASCII)
    taken = [int(match[1]) for entry in runs.iterdir() if (match := pattern.fullmatch(entry.name))]
    number = max(taken, default=0) + 1
    while True:
        path = runs / f"{name}-{number}"
        try:
            path.mkdir(mode=PRIVATE_MODE)
        except FileExistsError:
            number += 1
        else:
            return path.resolve()


def _refuse_foreign_place(foreign: ForeignPath | None) -> None:
    """Raise FolderNotWritable: the owner of a parent folder could replace the run while it is written."""
    if foreign is not None:
        raise FolderNotWritable(
            f"{foreign.path} belongs to {foreign.owner}: Holdfast does not record a run there, because the owner could "
            "replace it while it is being written.",
            next_step="use --dir DIR to choose a location inside one of your own folders",
        )


def _get_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - os functions, as in the other checks here
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _is_run(path: Path) -> bool:
    # os.path: a folder without access permission is not a run, and not an error either.
    return any(os.path.isfile(path / name) for name in ("plan.toml", "journal.jsonl"))  # noqa: PTH113


def _list_names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _search(root: Path) -> tuple[list[RunFolder], list[ForeignPath]]:
    """Return the runs of trusted users, newest first, and the runs of other users with their owners."""
    runs = root / RUNS
    above = find_foreign_folder((runs.parent, runs))
    trusted: list[Path] = []
    foreign: list[ForeignPath] = []
    for path in (runs / name for name in _list_names(runs)):
        if _is_run(path):
            part = find_foreign_part(path)
            if above is None and part is None:
                trusted.append(path)
            else:
                foreign.append(ForeignPath(path, (part or above or ForeignPath(path, "")).owner))
    return _sort_newest_first(trusted), foreign


def runs_newest_first(root: Path, notify: Callable[[str], None] = lambda _: None) -> list[RunFolder]:
    """Return the runs of trusted users. Report skipped runs of other users through `notify`."""
    runs, foreign = _search(root)
    if foreign:
        notify(describe_skipped(foreign))
    return runs


def _sort_newest_first(runs: list[Path]) -> list[RunFolder]:
    def start_time(run: Path) -> float:
        with contextlib.suppress(OSError):
            return (run / "plan.toml").stat().st_mtime
        return 0.0

    return [RunFolder(run) for run in sorted(runs, key=start_time, reverse=True)]
