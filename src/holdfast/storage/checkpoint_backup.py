"""Backup copies of the checkpoints of an attempt: a retry that starts over writes to the same file names.

A backup is a clone if the file system supports it (no space, no time), otherwise a real copy. It is never a hard link:
torch.save truncates in place, which would destroy the file under both names. A backup survives a crash of any process
immediately, and a crash of the machine once it is flushed to disk. The next attempt does not wait for the flush.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from holdfast.schema.events import BackedUpFile
from holdfast.schema.units import size as format_size
from holdfast.storage.integrity import is_truncated
from holdfast.storage.reflink import clone
from holdfast.storage.safe_files import make_folders, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVE = 2 << 30
"""Bytes of disk space to leave free for the training."""
MAX_COPIED = 1 << 38
"""Maximum number of bytes copied per backup, if cloning is not possible (256 GiB)."""
MAX_FILES = 100_000
"""Maximum number of files in one saved folder."""
CHUNK = 1 << 22
OUTSIDE = "outside-the-project"


def back_up(
    files: Iterable[tuple[str | os.PathLike[str], int]],
    into: Path,
    reserve_bytes: int = RESERVE,
    base: Path | None = None,
) -> tuple[list[BackedUpFile], list[str]]:
    """Copy saved files and folders, newest first. Each is given with the step at which it was saved.

    Return the backups, and the paths that were skipped with the reason for each. The folder structure below `base` (the
    working folder of the training) is kept below `into`, so that files with the same name do not collide.
    """
    if into.is_symlink() or into.parent.is_symlink():
        return [], [
            f"{os.fspath(path)}: {into} is a symlink, and Holdfast does not write through symlinks" for path, _ in files
        ]
    base, into = (base or Path.cwd()).resolve(), into.resolve()
    budget = _Budget(reserve_bytes)
    kept: list[BackedUpFile] = []
    left_out: list[str] = []
    for name, source, step in _sort_newest_first(files, base, left_out):
        if source == into or into in source.parents:
            continue
        if source in into.parents:
            left_out.append(f"{name}: it contains the run folder")
            continue
        try:
            target = into / _relative_name(source, base)
            into.mkdir(parents=True, exist_ok=True)
            make_folders(into, target.parent)
            kept.append(_back_up_one(name, source, step, target, budget, left_out))
        except _NoSpaceError as error:
            left_out.append(f"{name}: {error}")
        except OSError as error:
            left_out.append(f"{name}: {error.strerror or error}")
    return kept, left_out


class BackgroundFlush:
    """Flushes backups to disk in the background, while the next attempt runs."""

    def __init__(self) -> None:
        self._copies: list[BackedUpFile] = []
        self._thread: threading.Thread | None = None
        self._trouble: list[str] = []

    def add(self, copies: Iterable[BackedUpFile]) -> None:
        self._copies += copies

    def begin(self) -> None:
        if self._copies:
            thread = threading.Thread(target=self._flush, name="holdfast checkpoint backup", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread could be started: `end` flushes them
                thread.start()
                self._thread = thread

    def end(self) -> list[str]:
        """Wait until everything is flushed. Return the paths that could not be flushed, each with the reason."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._flush()
        trouble, self._trouble = self._trouble, []
        return trouble

    def _flush(self) -> None:
        while self._copies:
            copy = Path(self._copies.pop().kept)
            try:
                for path in (*(_find_files(copy) if copy.is_dir() else (copy,)), *_find_folders(copy)):
                    _flush(path)
            except OSError as error:
                self._trouble.append(f"{copy}: {error.strerror or error}")


class _NoSpaceError(Exception):
    pass


class _Budget:
    """The number of bytes that may still be copied. A clone costs nothing."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._left = MAX_COPIED

    def take(self, size: int, folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free - size < self._reserve:
            raise _NoSpaceError(
                f"it needs {format_size(size)}, but only {format_size(free)} is free, of which {format_size(self._reserve)} is reserved"
            )
        if size > self._left:
            raise _NoSpaceError(
                f"it needs {format_size(size)}, but only {format_size(self._left)} is left of the copy limit"
            )
        self._left -= size


def _sort_newest_first(
    files: Iterable[tuple[str | os.PathLike[str], int]], base: Path, left_out: list[str]
) -> list[tuple[str, Path, int]]:
    latest: dict[Path, tuple[str, int]] = {}
    for path, step in files:
        name = os.fspath(path)
        try:
            source = (base / name).resolve(strict=True)
        except FileNotFoundError:
            continue  # rotated or renamed by the training: there is nothing to lose
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            left_out.append(f"{name}: {reason}")
            continue
        if not (source.is_file() or source.is_dir()):
            left_out.append(f"{name}: neither a file nor a folder")
            continue
        previous = latest.get(source)
        if previous is None or step >= previous[1]:
            latest[source] = (name, step)
    dated = [(_get_write_time(source), step, name, source) for source, (name, step) in latest.items()]
    dated.sort(key=lambda entry: entry[:2], reverse=True)
    return [(name, source, step) for _, step, name, source in dated]


def _get_write_time(source: Path) -> float:
    times = [0.0]
    with contextlib.suppress(OSError, _NoSpaceError):
        for file in (source, *(_find_files(source) if source.is_dir() else ())):
            with contextlib.suppress(OSError):
                times.append(file.stat().st_mtime)
    return max(times)


def _find_files(folder: Path) -> list[Path]:
    """Return all regular files below the folder, without following symlinks."""
    return _scan(folder)[0]


def _scan(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the regular files below the folder, the symlinks (none is followed), and everything else except folders.

    Raise _NoSpaceError if there are too many.
    """
    files: list[Path] = []
    links: list[Path] = []
    others: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in (*sorted(names), *folders):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                links.append(path)
            elif stat.S_ISREG(mode):
                files.append(path)
            elif not stat.S_ISDIR(mode):
                others.append(path)
        if len(files) + len(links) + len(others) > MAX_FILES:
            raise _NoSpaceError(f"it contains more than {MAX_FILES:,} files")
    return files, links, others


def _find_folders(copy: Path) -> list[Path]:
    """Return the folders inside the copy, and its parent."""
    inside = [Path(parent) for parent, _, _ in os.walk(copy)] if copy.is_dir() else []
    return [*inside, copy.parent]


def _relative_name(source: Path, base: Path) -> Path:
    if source != base and source.is_relative_to(base):
        return source.relative_to(base)
    return Path(OUTSIDE, *source.parts[1:])


def _back_up_one(
    name: str, source: Path, step: int, target: Path, budget: _Budget, left_out: list[str]
) -> BackedUpFile:
    partial = target.with_name(f".{target.name}.partial")
    _remove(partial)
    try:
        if source.is_dir():
            size = _copy_folder(name, source, partial, budget, left_out)
        else:
            size = _copy_file(source, partial, budget)
        _move_into_place(partial, target)
    except BaseException:
        _remove(partial)
        raise
    return BackedUpFile(path=name, kept=str(target), bytes=size, step=step, torn=is_truncated(target))


def _copy_folder(name: str, source: Path, partial: Path, budget: _Budget, left_out: list[str]) -> int:
    """Copy a folder and return its size. Symlinks stay symlinks: targets outside the folder were not saved there."""
    partial.mkdir()
    size = 0
    files, links, others = _scan(source)
    for file in files:
        copy = partial / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        size += _copy_file(file, copy, budget)
    outside = []
    for link in sorted(links):
        copy = partial / link.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        inside = _resolve_inside(link, source)
        if inside is None:
            outside.append(link)
            copy.symlink_to(_absolute_target(link))
        else:
            copy.symlink_to(os.path.relpath(inside, link.parent.resolve()))  # point to the copy, not to the original
    if outside:
        message = "symlinks that point outside are kept as symlinks, without their targets"
        left_out.append(f"{name}: {message}: {_format_names(outside, source)}")
    if others:
        left_out.append(f"{name}: neither files nor folders: {_format_names(others, source)}")
    return size


def _format_names(paths: list[Path], folder: Path) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(str(path.relative_to(folder)) for path in paths[:3]) + more


def _resolve_inside(link: Path, folder: Path) -> Path | None:
    """Return the target of a symlink inside the folder; None if it points outside or does not exist."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return target if target.is_relative_to(folder) else None


def _absolute_target(link: Path) -> str:
    """Return the absolute target: a relative symlink would point elsewhere from the location of the copy."""
    return os.path.normpath(link.parent.resolve() / link.readlink())


def _copy_file(source: Path, copy: Path, budget: _Budget) -> int:
    """Copy a file up to its current size, so that a file that is still growing does not fill the disk."""
    with open_regular(source) as file:
        size = os.fstat(file.fileno()).st_size
        if not clone(source, copy):
            budget.take(size, copy.parent)
            _copy_bytes(file, copy, size)
            shutil.copystat(source, copy)
    return size


def _copy_bytes(file: BinaryIO, copy: Path, size: int) -> None:
    with copy.open("xb") as into:
        while size and (chunk := file.read(min(size, CHUNK))):
            size -= into.write(chunk)


def _move_into_place(partial: Path, target: Path) -> None:
    if target.is_dir() or (target.exists() and partial.is_dir()):
        _remove(target)  # a folder cannot be replaced in one step; its source has just been copied again
    partial.replace(target)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
