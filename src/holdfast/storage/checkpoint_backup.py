"""Copies of what an attempt saved, out of harm's way: a retry that starts over writes to the same names.

A clone where the file system can (no space, no time), else a real copy. Never a hard link: torch.save truncates in place,
and would destroy both names at once. A copy outlives every process at once, and a machine that fails when it has been
flushed, which the next attempt does not wait for.
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
from holdfast.storage.integrity import is_torn
from holdfast.storage.reflink import clone
from holdfast.storage.safe_files import make_folder_below, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVE = 2 << 30
"""Bytes of disk that are left free: the training goes on writing."""
MAX_COPIED = 1 << 38
"""Bytes that are copied at once, where they cannot be cloned (256 GiB)."""
MAX_FILES = 100_000
"""In one saved folder."""
PIECE = 1 << 22
OUTSIDE = "outside-the-project"


def keep(
    files: Iterable[tuple[str | os.PathLike[str], int]],
    into: Path,
    reserve_bytes: int = RESERVE,
    base: Path | None = None,
) -> tuple[list[BackedUpFile], list[str]]:
    """Copy saved files and folders, each with the step it was saved at, the newest first. Returns what was kept and what
    was left out, each path with its reason. Below `into` the folders are as they are below `base` (the training's working
    folder), so that files of the same name do not meet.
    """
    if into.is_symlink() or into.parent.is_symlink():
        return [], [
            f"{os.fspath(path)}: {into} is a link, and what is behind one is not written to" for path, _ in files
        ]
    base, into = (base or Path.cwd()).resolve(), into.resolve()
    budget = _Budget(reserve_bytes)
    kept: list[BackedUpFile] = []
    left_out: list[str] = []
    for given, source, step in _newest_first(files, base, left_out):
        if source == into or into in source.parents:
            continue
        if source in into.parents:
            left_out.append(f"{given}: it holds the run's own folder")
            continue
        try:
            target = into / _name_below(source, base)
            into.mkdir(parents=True, exist_ok=True)
            make_folder_below(into, target.parent)
            kept.append(_keep_one(given, source, step, target, budget, left_out))
        except _NoRoomError as full:
            left_out.append(f"{given}: {full}")
        except OSError as error:
            left_out.append(f"{given}: {error.strerror or error}")
    return kept, left_out


class Flushing:
    """Puts copies onto the disk itself, beside whatever runs next."""

    def __init__(self) -> None:
        self._copies: list[BackedUpFile] = []
        self._thread: threading.Thread | None = None
        self._trouble: list[str] = []

    def add(self, copies: Iterable[BackedUpFile]) -> None:
        self._copies += copies

    def begin(self) -> None:
        if self._copies:
            thread = threading.Thread(target=self._flush, name="holdfast vault", daemon=True)
            with contextlib.suppress(RuntimeError):  # no room for a thread: `end` does it
                thread.start()
                self._thread = thread

    def end(self) -> list[str]:
        """Wait for it; returns what could not be flushed, each path with its reason. No thread is left."""
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
                for place in (*(_files_in(copy) if copy.is_dir() else (copy,)), *_folders_of(copy)):
                    _flush(place)
            except OSError as error:
                self._trouble.append(f"{copy}: {error.strerror or error}")


class _NoRoomError(Exception):
    pass


class _Budget:
    """What copies may still take. A clone takes nothing."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._left = MAX_COPIED

    def take(self, size: int, folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free - size < self._reserve:
            raise _NoRoomError(
                f"its {_told(size)} do not fit: {_told(free)} are free, of which {_told(self._reserve)} are kept"
            )
        if size > self._left:
            raise _NoRoomError(f"its {_told(size)} are more than the {_told(self._left)} that are still copied at once")
        self._left -= size


def _newest_first(
    files: Iterable[tuple[str | os.PathLike[str], int]], base: Path, left_out: list[str]
) -> list[tuple[str, Path, int]]:
    found: dict[Path, tuple[str, int]] = {}
    for path, step in files:
        given = os.fspath(path)
        try:
            source = (base / given).resolve(strict=True)
        except FileNotFoundError:
            continue  # rotated or renamed by the training itself: nothing is there that could be lost
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            left_out.append(f"{given}: {reason}")
            continue
        if not (source.is_file() or source.is_dir()):
            left_out.append(f"{given}: neither a file nor a folder")
            continue
        before = found.get(source)
        if before is None or step >= before[1]:
            found[source] = (given, step)
    dated = [(_written(source), step, given, source) for source, (given, step) in found.items()]
    dated.sort(key=lambda one: one[:2], reverse=True)
    return [(given, source, step) for _, step, given, source in dated]


def _written(source: Path) -> float:
    times = [0.0]
    with contextlib.suppress(OSError, _NoRoomError):
        for file in (source, *(_files_in(source) if source.is_dir() else ())):
            with contextlib.suppress(OSError):
                times.append(file.stat().st_mtime)
    return max(times)


def _files_in(folder: Path) -> list[Path]:
    """All regular files below that are not reached through a link."""
    return _content_of(folder)[0]


def _content_of(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The regular files below, the links, none of which is followed, and what else there is but folders. Raises _NoRoomError where
    there are too many.
    """
    files: list[Path] = []
    links: list[Path] = []
    others: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in (*sorted(names), *folders):
            path = Path(place, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                links.append(path)
            elif stat.S_ISREG(mode):
                files.append(path)
            elif not stat.S_ISDIR(mode):
                others.append(path)
        if len(files) + len(links) + len(others) > MAX_FILES:
            raise _NoRoomError(f"it holds more than {MAX_FILES:,} files")
    return files, links, others


def _folders_of(copy: Path) -> list[Path]:
    """Those inside it, and the one in which it stands."""
    inside = [Path(place) for place, _, _ in os.walk(copy)] if copy.is_dir() else []
    return [*inside, copy.parent]


def _name_below(source: Path, base: Path) -> Path:
    if source != base and source.is_relative_to(base):
        return source.relative_to(base)
    return Path(OUTSIDE, *source.parts[1:])


def _keep_one(given: str, source: Path, step: int, target: Path, budget: _Budget, left_out: list[str]) -> BackedUpFile:
    partial = target.with_name(f".{target.name}.partial")
    _remove(partial)
    try:
        if source.is_dir():
            size = _copy_folder(given, source, partial, budget, left_out)
        else:
            size = _copy_file(source, partial, budget)
        _put_in_place(partial, target)
    except BaseException:
        _remove(partial)
        raise
    return BackedUpFile(path=given, kept=str(target), bytes=size, step=step, torn=is_torn(target))


def _copy_folder(given: str, source: Path, partial: Path, budget: _Budget, left_out: list[str]) -> int:
    """Links stay links: what they lead to outside of the folder was not saved there, and may be anything."""
    partial.mkdir()
    size = 0
    files, links, others = _content_of(source)
    for file in files:
        copy = partial / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        size += _copy_file(file, copy, budget)
    outside = []
    for link in sorted(links):
        copy = partial / link.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        inside = _within(link, source)
        if inside is None:
            outside.append(link)
            copy.symlink_to(_absolute_target(link))
        else:
            copy.symlink_to(os.path.relpath(inside, link.parent.resolve()))  # in the copy, to the copy
    if outside:
        said = "links that lead out of it are kept as links, without what they lead to"
        left_out.append(f"{given}: {said}: {_names(outside, source)}")
    if others:
        left_out.append(f"{given}: neither files nor folders: {_names(others, source)}")
    return size


def _names(paths: list[Path], folder: Path) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(str(path.relative_to(folder)) for path in paths[:3]) + more


def _within(link: Path, folder: Path) -> Path | None:
    """Where in the folder a link leads; None where it leads out of it, or nowhere."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return target if target.is_relative_to(folder) else None


def _absolute_target(link: Path) -> str:
    """A relative link would lead elsewhere from where the copy is."""
    return os.path.normpath(link.parent.resolve() / link.readlink())


def _copy_file(source: Path, copy: Path, budget: _Budget) -> int:
    """As much as it holds now: one that is still written to does not fill the disk."""
    with open_regular(source) as file:
        size = os.fstat(file.fileno()).st_size
        if not clone(source, copy):
            budget.take(size, copy.parent)
            _copy_bytes(file, copy, size)
            shutil.copystat(source, copy)
    return size


def _copy_bytes(file: BinaryIO, copy: Path, size: int) -> None:
    with copy.open("xb") as into:
        while size and (piece := file.read(min(size, PIECE))):
            size -= into.write(piece)


def _put_in_place(partial: Path, target: Path) -> None:
    if target.is_dir() or (target.exists() and partial.is_dir()):
        _remove(target)  # a folder cannot be replaced in one step; what it came from was kept again just now
    partial.replace(target)


def _flush(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _told(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
