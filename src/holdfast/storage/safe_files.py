"""Safe access to files that someone else may have created: only regular files of limited size and trusted owners.

A plain `open` blocks forever on a FIFO or device with an expected name. A file of 50 GB fills the memory. A file of
another user may contain a command that would run with our permissions. All files found in a folder are read through
this module.
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


class HardLinkedFile(OSError):
    """A file with several hard links: writing to it also changes the file under its other names."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EMLINK, f"{path.name} is a hard link to a file elsewhere", str(path))


class FileTooLarge(OSError):
    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading without blocking. Raise OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    handle = open_handle(path, flags if follow_links else flags | os.O_NOFOLLOW)
    return os.fdopen(handle, "rb")


def open_handle(path: Path, flags: int, mode: int = 0o600) -> int:
    """Call `os.open`, but only for regular files, and for writing only if they have no other hard link.

    Raise OSError, also for an invalid path (with a NUL in it). A refused file is not truncated.
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
            raise HardLinkedFile(path)
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def touch(path: Path) -> None:
    """Like `Path.touch`, but only for regular files, and without following symlinks. Raise OSError."""
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.utime(handle)
    finally:
        os.close(handle)


def make_folders(base: Path, folder: Path, mode: int = 0o700) -> None:
    """Create `folder` and its missing parents below `base`. Raise OSError, also if one of them is a symlink."""
    path = base
    for name in folder.relative_to(base).parts:
        path = path / name
        path.mkdir(exist_ok=True, mode=mode)
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symlink, and Holdfast does not write through symlinks", str(path))


def is_file(path: Path) -> bool:
    """Like `Path.is_file`, but do not raise for a name that is too long or a folder without access permission."""
    return os.path.isfile(path)  # noqa: PTH113


def is_dir(path: Path) -> bool:
    """Like `Path.is_dir`, but never raise (see `is_file`)."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    """Like `Path.exists`, but never raise (see `is_file`)."""
    return os.path.exists(path)  # noqa: PTH110


def read_bytes(path: Path, max_bytes: int, *, follow_links: bool = True) -> bytes:
    """Read the whole file. Raise FileTooLarge if it is larger than `max_bytes`, and OSError."""
    with open_regular(path, follow_links=follow_links) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FileTooLarge(path, max_bytes)
    return data


def trusted_users() -> frozenset[int]:
    """Return the users whose files may be acted on: this user, root, and under sudo the calling user."""
    users = {os.geteuid(), 0}
    if os.geteuid() == 0:
        caller = os.environ.get("SUDO_UID", "")
        if caller.isascii() and caller.isdigit() and len(caller) <= MAX_UID_DIGITS:
            users.add(int(caller))
    return frozenset(users)


def untrusted_owner(path: Path) -> str | None:
    """Return the name of the owner of this path if the owner is not trusted, otherwise None.

    For a symlink, both its own owner and that of its target must be trusted. Raise OSError if the path does not exist.
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
    """Replace `~` by the home folder. Return the path unchanged if the user or home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
