"""Open files that somebody else may have put there: regular files only, bounded, and owned by a user whom we trust.

A FIFO or a device under an expected name makes a plain `open` wait for ever; a file of 50 GB fills the memory; a file of
another user may hold a command that would run with our rights. Everything found in a folder is read through this module.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import BinaryIO

MAX_UID_DIGITS = 10


class NotARegularFile(OSError):
    """A folder, FIFO, socket or device where a file was expected."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file", str(path))


class HasOtherNames(OSError):
    """A hard link: what is written to it changes a file elsewhere too."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EMLINK, f"{path.name} has another name elsewhere (a hard link)", str(path))


class FileTooLarge(OSError):
    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading, without waiting for anything. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    handle = open_handle(path, flags if follow_links else flags | os.O_NOFOLLOW)
    return os.fdopen(handle, "rb")


def open_handle(path: Path, flags: int, mode: int = 0o600) -> int:
    """`os.open` for regular files only, and to be written to for those with one name only.

    Raises OSError, also for a path that no file can have (a NUL in it). A file that is refused is not cut short either.
    """
    try:
        handle = os.open(path, flags & ~os.O_TRUNC, mode)
    except ValueError as error:  # an embedded NUL
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotARegularFile(path)
        if status.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
            raise HasOtherNames(path)
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def touch(path: Path) -> None:
    """Like `Path.touch`, for a regular file only and through no link. Raises OSError."""
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.utime(handle)
    finally:
        os.close(handle)


def make_folder_below(base: Path, folder: Path, mode: int = 0o700) -> None:
    """Make `folder`, and those between `base` and it. Raises OSError, also where one of them is a link, which leads anywhere."""
    above = base
    for name in folder.relative_to(base).parts:
        above = above / name
        above.mkdir(exist_ok=True, mode=mode)
        if above.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and what is behind one is not written to", str(above))


def is_file(path: Path) -> bool:
    """Like `Path.is_file`, which raises for a name that is too long or a folder that may not be entered."""
    return os.path.isfile(path)  # noqa: PTH113


def is_dir(path: Path) -> bool:
    """Like `Path.is_dir`, and as `is_file` never raises."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    """Like `Path.exists`, and as `is_file` never raises."""
    return os.path.exists(path)  # noqa: PTH110


def read_bytes(path: Path, max_bytes: int, *, follow_links: bool = True) -> bytes:
    """The whole file. Raises FileTooLarge beyond `max_bytes`, and OSError."""
    with open_regular(path, follow_links=follow_links) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FileTooLarge(path, max_bytes)
    return data


def trusted_users() -> frozenset[int]:
    """Who may leave something that we act on: this user, root, and under sudo the user who called it."""
    users = {os.geteuid(), 0}
    if os.geteuid() == 0:
        caller = os.environ.get("SUDO_UID", "")
        if caller.isascii() and caller.isdigit() and len(caller) <= MAX_UID_DIGITS:
            users.add(int(caller))
    return frozenset(users)


def untrusted_owner(path: Path) -> str | None:
    """The name of the user who owns this file, folder or link, where that is somebody else; None where we trust the owner.

    A link is judged by its own owner and by the owner of what it leads to. Raises OSError where nothing is there.
    """
    for user in (path.lstat().st_uid, path.stat().st_uid):
        if user not in trusted_users():
            return user_name(user)
    return None


def user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"


def expand_user(path: str) -> Path:
    """With `~` replaced by a home folder. As it was written where no such user, or no home, is known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
