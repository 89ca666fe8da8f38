"""Keeps a program, and all that it starts, from writing outside of some folders: Landlock, which Linux has since 5.13.

Reading stays as it is. It needs no rights, cannot be undone, and holds for whatever writes: C libraries, a shell, git, sqlite, `python -I`.
What it does not know: changing a file's mode, owner, times and attributes.

This file's text is also the program that does it: run under Holdfast's own Python, it confines itself, and then becomes the
training's command (`exec`), under the same pid. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls: the same numbers on every architecture."""
VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVS = 38
WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE = sum(1 << bit for bit in range(6, 13))
"""Devices, folders, files, sockets, pipes, links."""
REFER, TRUNCATE = 1 << 13, 1 << 14
WITH_REFER, WITH_TRUNCATE = 2, 3
"""The first versions that know them. Before REFER no file can be moved to another folder at all, which breaks programs."""
OF_FILES = WRITE_FILE | TRUNCATE
FAILED = "could-not-start"
UNCONFINED = "not-confined"
REACHED = "about-to-start"
"""Files beside the scratch in which the program tells how far it came, and what went wrong."""


def why_unavailable() -> str | None:
    """Why nothing can be confined on this system; None where it can."""
    if not sys.platform.startswith("linux"):
        return "there is no Landlock on this system"
    known = version()
    if known >= WITH_REFER:
        return None
    return "this kernel has no Landlock, or it is switched off" if known <= 0 else "this kernel's Landlock is too old"


def version() -> int:
    """Of the kernel's Landlock; 0 or less where there is none."""
    try:
        return int(_libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION)))
    except (OSError, AttributeError):
        return 0


def handled(known: int) -> int:
    """All ways of writing that this version can forbid."""
    rights = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    if known >= WITH_REFER:
        rights |= REFER
    return rights | TRUNCATE if known >= WITH_TRUNCATE else rights


def allowed(path: str, mode: int, rights: int) -> int:
    """What may be done beneath a path: all that is forbidden elsewhere; in /dev, /proc and /sys, writing to what is there."""
    if not stat.S_ISDIR(mode) or path in ("/dev", "/proc", "/sys"):
        return rights & OF_FILES
    return rights


def rule(rights: int, handle: int) -> bytes:
    return struct.pack("=Qi", rights, handle)


def confine(folders: list[str]) -> None:
    """This process and all that it will start write beneath these folders only. Raises OSError."""
    libc, rights = _libc(), handled(version())
    ruleset = _checked(libc.syscall(CREATE_RULESET, struct.pack("=Q", rights), ctypes.c_size_t(8), ctypes.c_uint32(0)))
    try:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _allow(libc, ruleset, folder, rights)
        _checked(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc.syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, folder: str, rights: int) -> None:
    handle = os.open(folder, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    try:
        attributes = rule(allowed(folder, os.fstat(handle).st_mode, rights), handle)
        _checked(
            libc.syscall(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), attributes, ctypes.c_uint32(0))
        )
    finally:
        os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def main(asked: str) -> None:
    """`asked` in JSON: the command, the folders that may be written to, and one to tell in what went wrong."""
    told = json.loads(asked)
    try:
        confine(told["folders"])
    except OSError as error:
        _tell(told["tells"], UNCONFINED, error)
    _tell(told["tells"], REACHED, OSError(0, ""))
    try:
        os.execvp(told["command"][0], told["command"])  # noqa: S606 - the user's own command, word by word
    except (OSError, ValueError) as error:
        _tell(told["tells"], FAILED, error)
        os._exit(127)


def _tell(folder: str, name: str, error: Exception) -> None:
    number = getattr(error, "errno", None) or errno.EINVAL
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123 - pathlib costs a start
        json.dump([number, str(getattr(error, "strerror", None) or error)], file)


if __name__ == "__main__":
    main(sys.argv[1])
