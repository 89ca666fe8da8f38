"""Prevents a program and everything that it starts from writing outside some folders, with Landlock (Linux 5.13 or newer).

Reading is not restricted. Landlock needs no privileges, cannot be undone, and applies to everything that writes: C libraries, a shell, git,
sqlite, `python -I`. It does not cover changes of a file's mode, owner, times and attributes.

The source of this module is also the program that does it: run under Holdfast's own Python, it confines itself and then becomes the
training's command (`exec`), with the same pid. Standard library only.
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
"""System call numbers, the same on every architecture."""
VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVS = 38
WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE = sum(1 << bit for bit in range(6, 13))
"""Devices, folders, files, sockets, pipes, links."""
REFER, TRUNCATE = 1 << 13, 1 << 14
WITH_REFER, WITH_TRUNCATE = 2, 3
"""The first versions that support them. Without REFER no file can be moved to another folder, which breaks programs."""
OF_FILES = WRITE_FILE | TRUNCATE
FAILED = "could-not-start"
UNCONFINED = "not-confined"
REACHED = "about-to-start"
"""Files next to the scratch copy in which the program reports how far it got, and what went wrong."""


def why_unavailable() -> str | None:
    """Return why writes cannot be restricted on this system; None if they can."""
    if not sys.platform.startswith("linux"):
        return "there is no Landlock on this system"
    known = version()
    if known >= WITH_REFER:
        return None
    return "this kernel has no Landlock, or it is disabled" if known <= 0 else "this kernel's Landlock is too old"


def version() -> int:
    """Return the Landlock version of the kernel; 0 or less if there is none."""
    try:
        return int(_libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION)))
    except (OSError, AttributeError):
        return 0


def write_rights(known: int) -> int:
    """Return all kinds of writes that this version can forbid."""
    rights = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    if known >= WITH_REFER:
        rights |= REFER
    return rights | TRUNCATE if known >= WITH_TRUNCATE else rights


def rights_beneath(path: str, mode: int, rights: int) -> int:
    """Return the rights beneath a path: everything that is forbidden elsewhere; in /dev, /proc and /sys, writing to existing files."""
    if not stat.S_ISDIR(mode) or path in ("/dev", "/proc", "/sys"):
        return rights & OF_FILES
    return rights


def pack_rule(rights: int, handle: int) -> bytes:
    return struct.pack("=Qi", rights, handle)


def confine(folders: list[str]) -> None:
    """Restrict writes of this process and its future children to these folders. Raises OSError."""
    libc, rights = _libc(), write_rights(version())
    ruleset = _raise_on_error(
        libc.syscall(CREATE_RULESET, struct.pack("=Q", rights), ctypes.c_size_t(8), ctypes.c_uint32(0))
    )
    try:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _allow(libc, ruleset, folder, rights)
        _raise_on_error(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
        _raise_on_error(libc.syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, folder: str, rights: int) -> None:
    handle = os.open(folder, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    try:
        attributes = pack_rule(rights_beneath(folder, os.fstat(handle).st_mode, rights), handle)
        _raise_on_error(
            libc.syscall(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), attributes, ctypes.c_uint32(0))
        )
    finally:
        os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _raise_on_error(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def main(request: str) -> None:
    """Confine this process and run the command. `request` is JSON: the command, the writable folders, and the folder for reports."""
    options = json.loads(request)
    try:
        confine(options["folders"])
    except OSError as error:
        _report(options["report_to"], UNCONFINED, error)
    _report(options["report_to"], REACHED, OSError(0, ""))
    try:
        os.execvp(options["command"][0], options["command"])  # noqa: S606 - the user's own command, word by word
    except (OSError, ValueError) as error:
        _report(options["report_to"], FAILED, error)
        os._exit(127)


def _report(folder: str, name: str, error: Exception) -> None:
    number = getattr(error, "errno", None) or errno.EINVAL
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123 - importing pathlib slows the start
        json.dump([number, str(getattr(error, "strerror", None) or error)], file)


if __name__ == "__main__":
    main(sys.argv[1])
