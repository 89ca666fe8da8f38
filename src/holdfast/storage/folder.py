"""The run folder: every path of a run in one place, and how a run is found again."""

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
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.owners import Foreign, describe_passed_over, foreign_above, foreign_folder, foreign_part
from holdfast.storage.safe_files import make_folder_below, open_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNS = Path(".holdfast") / "runs"
SHARED_MODE, PRIVATE_MODE = 0o755, 0o700
"""Of `.holdfast` and `runs`, and of a run. A umask takes away from these and adds nothing."""
MAX_RANK_FILES = 256
"""Of one attempt: a part of each is in memory while all are read in the order of their events."""
MAX_STAGES = 1000
_RANK_FILE = re.compile(r"rank-(\d{1,6})(-pid-\d{1,10})?\.jsonl", re.ASCII)
_STAGE_FOLDER = re.compile(r"(\d{1,6})(?:-.*)?", re.ASCII | re.DOTALL)
FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of runs and stages, of which folders are made."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def rank_in(name: str) -> tuple[int, bool]:
    """Which rank a file of events is of by its name, and whether of that rank's first process. Raises ValueError for other names."""
    match = _RANK_FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"not the file of a rank: {name!r}")
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
        """The vault: copies of what this attempt saved."""
        return self.path / "saved"

    @property
    def interpreters(self) -> Path:
        return self.path / protocol.INTERPRETERS_FILE

    def stacks(self, pid: int) -> Path:
        return self.path / protocol.stack_file(pid)

    def rank_files(self) -> list[Path]:
        """Files that a rank may have written, by their names. Others are not ours."""
        names = [name for name in _names_in(self.path) if _RANK_FILE.fullmatch(name)]
        first_processes_first = sorted(names, key=lambda name: (not rank_in(name)[1], rank_in(name)[0], name))
        return [self.path / name for name in first_processes_first[:MAX_RANK_FILES]]


@dataclass(frozen=True)
class RunFolder:
    path: Path
    _identity: tuple[int, int] | None = field(init=False, compare=False, repr=False)
    """Which folder lay there when this was made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_identity", _identity_of(self.path))

    def is_there(self) -> bool:
        """Whether the folder that was there still is. Another in its place, or a link to another, is not the run's."""
        now = _identity_of(self.path)
        return now is not None and self._identity in (None, now)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def reference(self) -> str:
        """What to type to name this run: its name, or its path where it does not stand among the others."""
        among_the_others = self.path.parent.parts[-2:] == RUNS.parts and not self.name.startswith("-")
        return self.name if among_the_others else str(self.path)

    @property
    def shell_reference(self) -> str:
        """The same as a word for a shell, for commands that are proposed."""
        return shell_quoted(self.reference)

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
        """Touched when the supervisor wants a snapshot at once."""
        return self.path / "snapshot-now"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def notifications(self) -> Path:
        """What the user's --on-event command printed."""
        return self.path / "on-event.log"

    @property
    def stages(self) -> Path:
        """Where each stage has a run folder of its own."""
        return self.path / "stages"

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(self.path / "attempts" / str(number))

    def attempts(self) -> list[AttemptFolder]:
        """Those that there are, in order."""
        try:
            names = [entry.name for entry in os.scandir(self.path / "attempts") if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return [self.attempt(number) for number in sorted(int(name) for name in names if _NUMBER.fullmatch(name))]

    def make_attempt(self, number: int) -> AttemptFolder | None:
        """A fresh folder for an attempt; None where there has been one of this number."""
        folder = self.attempt(number)
        make_folder_below(self.path, folder.path.parent, PRIVATE_MODE)
        try:
            folder.path.mkdir(mode=PRIVATE_MODE)
        except FileExistsError:
            return None
        return folder


def create(command: Sequence[str], *, root: Path, name: str | None = None, folder: Path | None = None) -> RunFolder:
    """A fresh run folder: `folder` itself where given, else the next free `<name>-<n>` under `root`."""
    refuse_bad_name(name)
    try:
        path = _claim_exactly(folder) if folder is not None else _claim_next(root / RUNS, name or name_for(command))
        write_new(path / ".gitignore", "*\n")
        (path / "attempts").mkdir(mode=PRIVATE_MODE)
    except OSError as error:
        where = folder or root / RUNS
        raise FolderNotWritable(
            f"The run folder cannot be made in {where}: {error.strerror}.",
            next_step="choose a folder that you can write to and that has room, with --dir DIR",
        ) from error
    return RunFolder(path)


def make_stage(run: RunFolder, number: int, name: str) -> RunFolder:
    """The run folder of a stage, made where there is none yet."""
    if not run.is_there():
        raise FolderGone(
            f"The run folder {run.path} was removed or replaced while the run lived.",
            next_step="start a new run; nothing was written into what lies there now",
        )
    fit = fit_for_a_folder(name, "")
    path = run.stages / (f"{number}-{fit}" if fit and fit != str(number) else str(number))
    try:
        make_folder_below(run.path, path / "attempts", PRIVATE_MODE)
    except OSError as error:
        raise FolderNotWritable(
            f"The folder of stage {name} cannot be made in {run.stages}: {error.strerror}.",
            next_step=f"make room, then: holdfast resume {run.shell_reference}",
        ) from error
    return RunFolder(path)


def refuse_links(run: RunFolder) -> None:
    """Raises FolderNotWritable where a folder of this run is a link: what is written there would land elsewhere."""
    attempts = run.path / "attempts"
    for path in (attempts, run.stages, run.snapshots, *_links_in(attempts), *_links_in(run.stages)):
        if path.is_symlink():
            raise FolderNotWritable(
                f"{path} is a link, and nothing of a run is written through a link.",
                next_step="put the folder that it leads to in its place, or remove it if you do not know where it comes from",
                look_at=str(path),
            )


def _links_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def stage_folders(run: RunFolder) -> list[RunFolder]:
    """In the order of the stages."""
    named = [(int(match[1]), name) for name in _names_in(run.stages) if (match := _STAGE_FOLDER.fullmatch(name))]
    found = [run.stages / name for _, name in sorted(named) if _is_run(run.stages / name)]
    return [RunFolder(path) for path in found[:MAX_STAGES]]


def working_folder() -> Path:
    """Where the user is. Raises FolderGone where that folder was removed under them."""
    try:
        return Path.cwd()
    except OSError as error:
        raise FolderGone(
            f"The folder in which this was started cannot be found any more: {error.strerror}.",
            next_step="change into a folder that exists (cd ~, or cd back into it if it was made again), then try again",
        ) from error


def find(reference: str | None, *, root: Path, notify: Callable[[str], None] = lambda _: None) -> RunFolder:
    """A run by path, by `name-n`, by name (its newest), or the newest of all.

    Runs of other users are found only by a reference that names them; otherwise they are passed over, and `notify` gets a
    line about it. Whoever acts on what is found has to call `owners.refuse_foreign` first.
    """
    if reference is not None:
        path = Path(reference)
        if _is_run(path):
            return RunFolder(path.resolve())
    runs, foreign = _search(root)
    if foreign and reference is None:
        notify(describe_passed_over(foreign))
    named = re.compile(re.escape(reference or "") + r"(?:-\d+)?")
    for run in runs:
        if reference is None or named.fullmatch(run.name):
            return run
    for run in _newest_first([each.path for each in foreign]):
        if reference is not None and named.fullmatch(run.name):
            return run
    known = ", ".join(run.name for run in runs[:5])
    if reference is None:
        raise UnknownRun(
            f"There is no run {'of yours ' if foreign else ''}under {root / RUNS} yet.",
            next_step="start one: holdfast run -- python train.py",
        )
    raise UnknownRun(
        f"There is no run called {reference!r}, and no run folder at that path.",
        next_step=f"name one of the newest: {known}" if known else "start one: holdfast run -- python train.py",
        look_at=str(root / RUNS),
    )


def refuse_bad_name(name: str | None) -> None:
    """A run's name is part of a path, and is printed: none leads elsewhere, or holds what a terminal obeys."""
    if name is not None and not FOLDER_NAME.fullmatch(name):
        raise UsageError(
            f"--name {name[:80]!r} cannot be the name of a run: a folder gets this name.",
            next_step="use at most 64 letters, digits, dots, - and _, a letter or digit first; --dir DIR says where a run lies",
        )


def fit_for_a_folder(name: str, default: str) -> str:
    """The nearest name that a folder may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:64] or default


def name_for(command: Sequence[str]) -> str:
    """The script's stem: of the first argument that is a Python file, else of the module, else of the program."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1].rpartition(".")[2]
    stem = Path(script or command[0]).stem
    return fit_for_a_folder(stem, "run")


def write_new(path: Path, text: str, mode: int = 0o600) -> None:
    """Raises FileExistsError where there is anything of that name, also a link that leads nowhere; and OSError."""
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.write(text)


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """The whole new text or the whole old one, whatever happens in between. A link of that name is replaced, not followed."""
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


def _claim_exactly(folder: Path) -> Path:
    if _is_run(folder):
        raise RunExists(
            f"{folder} already holds a run.",
            next_step=f"go on with it: holdfast resume {shell_quoted(folder)}; or choose another --dir",
        )
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(exist_ok=True, mode=SHARED_MODE)
    _refuse_foreign_place(foreign_above(folder))
    folder.mkdir(exist_ok=True, mode=PRIVATE_MODE)
    if any(folder.iterdir()):
        raise RunExists(f"{folder} is not empty.", next_step="give --dir a new or an empty folder")
    _refuse_foreign_place(foreign_folder([folder]))
    folder.chmod(PRIVATE_MODE)
    return folder.resolve()


def _claim_next(runs: Path, name: str) -> Path:
    for folder in (runs.parent, runs):
        folder.mkdir(exist_ok=True, mode=SHARED_MODE)
        _refuse_foreign_place(foreign_folder([folder]))
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


def _refuse_foreign_place(foreign: Foreign | None) -> None:
    """Who owns the folder above a run can put another in its place, or a link to anywhere, while it is written."""
    if foreign is not None:
        raise FolderNotWritable(
            f"{foreign.path} belongs to {foreign.owner}: no run is recorded there, because its owner could "
            "exchange it while it is being written.",
            next_step="choose one inside a folder of your own with --dir DIR",
        )


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - as the other questions here, without an error
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _is_run(path: Path) -> bool:
    # os.path: a folder that may not be entered is no run to us, and no error either.
    return any(os.path.isfile(path / name) for name in ("plan.toml", "journal.jsonl"))  # noqa: PTH113


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _search(root: Path) -> tuple[list[RunFolder], list[Foreign]]:
    """The runs of users whom we trust, newest first; and those of others, with their owners."""
    runs = root / RUNS
    above = foreign_folder((runs.parent, runs))
    found: list[Path] = []
    foreign: list[Foreign] = []
    for path in (runs / name for name in _names_in(runs)):
        if _is_run(path):
            part = foreign_part(path)
            if above is None and part is None:
                found.append(path)
            else:
                foreign.append(Foreign(path, (part or above or Foreign(path, "")).owner))
    return _newest_first(found), foreign


def runs_newest_first(root: Path, notify: Callable[[str], None] = lambda _: None) -> list[RunFolder]:
    """The runs of users whom we trust. `notify` gets a line where others were passed over."""
    runs, foreign = _search(root)
    if foreign:
        notify(describe_passed_over(foreign))
    return runs


def _newest_first(runs: list[Path]) -> list[RunFolder]:
    def started(run: Path) -> float:
        with contextlib.suppress(OSError):
            return (run / "plan.toml").stat().st_mtime
        return 0.0

    return [RunFolder(run) for run in sorted(runs, key=started, reverse=True)]
