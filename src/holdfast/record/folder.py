"""The run folder: every path of a run in one place, and how a run is found again."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.child.holdfast_child import protocol
from holdfast.words.errors import FolderNotWritable, RunExists, UnknownRun

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS = Path(".holdfast") / "runs"


@dataclass(frozen=True)
class AttemptFolder:
    path: Path

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
        return sorted(self.path.glob("rank-*.jsonl"))


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def reference(self) -> str:
        """What to type to name this run: its name, or its path where it does not stand among the others."""
        return self.name if self.path.parent.parts[-2:] == RUNS.parts else str(self.path)

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

    def make_attempt(self, number: int) -> AttemptFolder | None:
        """A fresh folder for an attempt; None where there has been one of this number."""
        folder = self.attempt(number)
        folder.path.parent.mkdir(exist_ok=True, mode=0o700)
        try:
            folder.path.mkdir(mode=0o700)
        except FileExistsError:
            return None
        return folder


def create(command: Sequence[str], *, root: Path, name: str | None = None, folder: Path | None = None) -> RunFolder:
    """A fresh run folder: `folder` itself where given, else the next free `<name>-<n>` under `root`."""
    try:
        path = _claim_exactly(folder) if folder is not None else _claim_next(root / RUNS, name or name_for(command))
        (path / ".gitignore").write_text("*\n")
        (path / "attempts").mkdir(mode=0o700)
    except OSError as error:
        where = folder or root / RUNS
        raise FolderNotWritable(
            f"The run folder cannot be made in {where}: {error.strerror}.",
            next_step="choose a folder that you can write to and that has room, with --dir DIR",
        ) from error
    return RunFolder(path)


def make_stage(run: RunFolder, number: int, name: str) -> RunFolder:
    """The run folder of a stage, made where there is none yet."""
    fit = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")
    path = run.stages / (f"{number}-{fit}" if fit and fit != str(number) else str(number))
    try:
        (path / "attempts").mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise FolderNotWritable(
            f"The folder of stage {name} cannot be made in {run.stages}: {error.strerror}.",
            next_step=f"make room, then: holdfast resume {run.reference}",
        ) from error
    return RunFolder(path)


def stage_folders(run: RunFolder) -> list[RunFolder]:
    """In the order of the stages."""
    found = [path for path in run.stages.iterdir() if _is_run(path)] if run.stages.is_dir() else []
    return [RunFolder(path) for path in sorted(found, key=lambda path: int(re.split(r"\D", path.name)[0] or 0))]


def find(reference: str | None, *, root: Path) -> RunFolder:
    """A run by path, by `name-n`, by name (its newest), or the newest of all."""
    if reference is not None:
        path = Path(reference)
        if _is_run(path):
            return RunFolder(path.resolve())
    runs = runs_newest_first(root)
    for run in runs:
        if reference is None or run.name == reference or re.fullmatch(re.escape(reference) + r"-\d+", run.name):
            return run
    known = ", ".join(run.name for run in runs[:5])
    if reference is None:
        raise UnknownRun(
            f"There is no run under {root / RUNS} yet.", next_step="start one: holdfast run -- python train.py"
        )
    raise UnknownRun(
        f"There is no run called {reference!r}, and no run folder at that path.",
        next_step=f"name one of the newest: {known}" if known else "start one: holdfast run -- python train.py",
        look_at=str(root / RUNS),
    )


def name_for(command: Sequence[str]) -> str:
    """The script's stem: of the first argument that is a Python file, else of the module, else of the program."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        script = command[command.index("-m") + 1].rpartition(".")[2]
    stem = Path(script or command[0]).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.") or "run"


def write_atomically(path: Path, text: str) -> None:
    """The whole new text or the whole old one, whatever happens in between."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _claim_exactly(folder: Path) -> Path:
    if _is_run(folder):
        raise RunExists(
            f"{folder} already holds a run.",
            next_step=f"go on with it: holdfast resume {folder}; or choose another --dir",
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(folder.iterdir()):
        raise RunExists(f"{folder} is not empty.", next_step="give --dir a new or an empty folder")
    folder.chmod(0o700)
    return folder.resolve()


def _claim_next(runs: Path, name: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    taken = [int(match[1]) for entry in runs.iterdir() if (match := pattern.fullmatch(entry.name))]
    number = max(taken, default=0) + 1
    while True:
        path = runs / f"{name}-{number}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return path.resolve()


def _is_run(path: Path) -> bool:
    return (path / "plan.toml").is_file() or (path / "journal.jsonl").is_file()


def runs_newest_first(root: Path) -> list[RunFolder]:
    runs = root / RUNS
    if not runs.is_dir():
        return []
    found = [entry for entry in runs.iterdir() if _is_run(entry)]

    def started(run: Path) -> float:
        with contextlib.suppress(OSError):
            return (run / "plan.toml").stat().st_mtime
        return 0.0

    return [RunFolder(run) for run in sorted(found, key=started, reverse=True)]
