"""Detects checkpoint files that were truncated during writing. Nothing is unpickled, and no file is read completely.

A checkpoint may have been downloaded. Regardless of its contents, the check takes little memory and time and only
raises OSError.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from holdfast.storage.safe_files import open_regular

_ZIP = b"PK\x03\x04"
_ENTRY = b"PK\x01\x02"
_ENTRY_SIZE = 46
_NOT_HERE = 0xFFFFFFFF
"""Placeholder for a number that does not fit: the value is in the entry's extra field."""
MAX_HEADER = 25_000_000
"""Maximum size of a safetensors header in bytes; a longer one is not checked. The format itself allows 100 MB."""
MAX_DIRECTORY = 1_000_000
"""Maximum number of bytes of an archive's directory to check: about ten thousand members."""
MAX_FILES = 10_000
"""Maximum number of files of a folder to check."""
_NEVER_ZERO = frozenset({".pt", ".pth", ".ckpt"})
_CHECKED = _NEVER_ZERO | {".safetensors", ".bin", ".distcp"}


def is_truncated(path: str | os.PathLike[str]) -> bool:
    """Return True if the file cannot be complete: an archive (torch.save) without its directory, a safetensors file
    shorter than its header states, or an empty file. A format without a check (the old pickle) passes unless it is
    empty. A folder is truncated if a file in it is. Raise OSError if there is nothing to read, or if it is neither a
    file nor a folder.
    """
    target = Path(path)
    if target.is_dir():
        return any(is_truncated(file) for file in _find_files(target))
    with open_regular(target) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(9)
        if size == 0 or (size < len(_ZIP) and _ZIP.startswith(head)):
            return True
        if head.startswith(_ZIP):
            return _is_archive_truncated(file, size)
        if target.suffix == ".safetensors" or (head[8:9] == b"{" and not head.startswith(b"\x80")):
            return _is_safetensors_truncated(file, size, head)
        return target.suffix in _NEVER_ZERO and not any(head)


def is_intact(path: Path) -> bool:
    """Check whether a file can be resumed from, without loading it. A folder is accepted as it is."""
    try:
        return path.exists() and not is_truncated(path)
    except Exception:  # noqa: BLE001 - the file may contain anything: one that cannot be read is skipped
        return False


def _find_files(folder: Path) -> list[Path]:
    """Return the regular files of a kind that can be checked. Symlinks to folders are not followed."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            if file.suffix in _CHECKED and _is_regular(file):
                found.append(file)
                if len(found) >= MAX_FILES:
                    return found
    return found


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:  # a dangling symlink
        return False


def _is_archive_truncated(file: BinaryIO, size: int) -> bool:
    """Check a zip archive. Its directory is written last, so a truncated archive usually has none. If there is one,
    every member must be located before it and begin with the magic number: a file with lost blocks can have the right
    length.
    """
    base = max(0, size - 65_557)
    file.seek(base)
    location = _find_directory(file.read(65_557))
    if location is None:
        return True
    # As in zipfile: the directory ends where its end record begins; offsets of members are relative to its stated position.
    start = base + location.end - location.size
    shift = start - location.offset
    if start < 0 or shift < 0 or location.size < _ENTRY_SIZE:
        return True
    file.seek(start)
    directory = file.read(min(location.size, MAX_DIRECTORY))
    at, is_cut = 0, location.size > len(directory)
    while at + _ENTRY_SIZE <= len(directory):
        entry = _read_entry(directory, at)
        if entry is None:
            return not (is_cut and at + _ENTRY_SIZE + 3 * 0xFFFF > len(directory))
        at, offset, packed = entry
        offset += shift
        if offset + packed > start:
            return True
        file.seek(offset)
        if file.read(4) != _ZIP:
            return True
    return not is_cut and at != len(directory)


class _Directory(msgspec.Struct):
    end: int
    """Where its end record begins, in the bytes that were searched."""
    size: int
    offset: int


def _find_directory(tail: bytes) -> _Directory | None:
    """Read the location from the archive's end record, or from the zip64 record before it if the numbers do not fit."""
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        return None
    size, offset = struct.unpack_from("<LL", tail, at + 12)
    longer = tail.rfind(b"PK\x06\x06", 0, at)
    if longer >= 0 and longer + 56 <= at and tail[at - 20 : at - 16] == b"PK\x06\x07":
        size, offset = struct.unpack_from("<QQ", tail, longer + 40)
        return _Directory(longer, size, offset)
    return None if _NOT_HERE in (size, offset) else _Directory(at, size, offset)


def _read_entry(directory: bytes, at: int) -> tuple[int, int, int] | None:
    """Return the offset of the next entry, and the offset and size of this member; None if the entry is incomplete."""
    if directory[at : at + 4] != _ENTRY:
        return None
    packed, unpacked, name, extra, comment = struct.unpack_from("<LLHHH", directory, at + 20)
    (offset,) = struct.unpack_from("<L", directory, at + 42)
    field = at + _ENTRY_SIZE + name
    after = field + extra + comment
    if after > len(directory):
        return None
    if _NOT_HERE in (packed, offset):
        numbers = _read_large_numbers(directory[field : field + extra])
        if unpacked == _NOT_HERE:
            numbers = numbers[1:]
        if packed == _NOT_HERE:
            packed, numbers = (numbers[0], numbers[1:]) if numbers else (-1, numbers)
        if offset == _NOT_HERE:
            offset = numbers[0] if numbers else -1
        if min(packed, offset) < 0:
            return None
    return after, offset, packed


def _read_large_numbers(extra: bytes) -> tuple[int, ...]:
    """Return the zip64 numbers that did not fit into the entry, in order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            count = min(length, len(extra) - at - 4) // 8
            return struct.unpack_from(f"<{min(count, 3)}Q", extra, at + 4)
        at += 4 + length
    return ()


_Offset = Annotated[int, msgspec.Meta(ge=0)]


class _Tensor(msgspec.Struct):
    """The only field that is needed; all others are ignored."""

    data_offsets: tuple[_Offset, _Offset]


_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor_decoder = msgspec.json.Decoder(_Tensor)


def _is_safetensors_truncated(file: BinaryIO, size: int, head: bytes) -> bool:
    if size < 8:
        return True
    (length,) = struct.unpack("<Q", head[:8])
    if length > size - 8:
        return True
    if length > MAX_HEADER:
        return False
    file.seek(8)
    try:
        tensors = _header_decoder.decode(file.read(length))
        ends = [_tensor_decoder.decode(raw).data_offsets[1] for name, raw in tensors.items() if name != "__metadata__"]
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return True
    return bool(8 + length + max(ends, default=0) > size)
