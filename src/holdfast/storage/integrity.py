"""Whether a checkpoint file was cut off while it was written. Nothing is unpickled, and no file is read whole.

A checkpoint may have been downloaded: whatever its bytes say, this takes little memory and time, and raises nothing but OSError.
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
"""In the place of a number that does not fit: it is in the entry's extra field."""
MAX_HEADER = 25_000_000
"""Bytes of a safetensors header, which the format itself bounds at 100 MB; a longer one is not looked into."""
MAX_DIRECTORY = 1_000_000
"""Bytes of an archive's directory that are looked at: some ten thousand members."""
MAX_FILES = 10_000
"""Of a folder that are looked at."""
_NEVER_ZERO = frozenset({".pt", ".pth", ".ckpt"})
_CHECKED = _NEVER_ZERO | {".safetensors", ".bin", ".distcp"}


def is_torn(path: str | os.PathLike[str]) -> bool:
    """True where the file cannot be whole: an archive (torch.save) without its directory, a safetensors file shorter than
    its header says, an empty file. A format without a check (the old pickle) passes unless it is empty. A folder is torn
    when a file in it is. Raises OSError where there is nothing to read, and for what is neither a file nor a folder.
    """
    place = Path(path)
    if place.is_dir():
        return any(is_torn(file) for file in _files_below(place))
    with open_regular(place) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(9)
        if size == 0 or (size < len(_ZIP) and _ZIP.startswith(head)):
            return True
        if head.startswith(_ZIP):
            return _archive_torn(file, size)
        if place.suffix == ".safetensors" or (head[8:9] == b"{" and not head.startswith(b"\x80")):
            return _safetensors_torn(file, size, head)
        return place.suffix in _NEVER_ZERO and not any(head)


def _files_below(folder: Path) -> list[Path]:
    """Regular files of a kind that can be checked; links to folders are not followed."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(place, name)
            if file.suffix in _CHECKED and _is_regular(file):
                found.append(file)
                if len(found) >= MAX_FILES:
                    return found
    return found


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:  # a link that leads nowhere
        return False


def _archive_torn(file: BinaryIO, size: int) -> bool:
    """The directory of a zip archive is written last, so a torn one mostly has none. Where there is one, every member must
    lie before it and begin as members do: a file that the disk lost a part of can have its right length.
    """
    base = max(0, size - 65_557)
    file.seek(base)
    found = _find_directory(file.read(65_557))
    if found is None:
        return True
    # As zipfile does: the directory ends where its own record begins, and members are counted from where it says that it is.
    start, shift = base + found.end - found.size, base + found.end - found.size - found.offset
    if start < 0 or shift < 0 or found.size < _ENTRY_SIZE:
        return True
    file.seek(start)
    directory = file.read(min(found.size, MAX_DIRECTORY))
    at, is_cut = 0, found.size > len(directory)
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
    """Where its own record begins, in the bytes that were searched."""
    size: int
    offset: int


def _find_directory(tail: bytes) -> _Directory | None:
    """As the archive's last record says, or the longer one before it, where the numbers do not fit."""
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
    """Where the next entry begins, where this member lies and how long it is; None where this is no whole entry."""
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
    """Of zip64: those that did not fit, in their order."""
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
    """All else in it is passed over."""

    data_offsets: tuple[_Offset, _Offset]


_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor_decoder = msgspec.json.Decoder(_Tensor)


def _safetensors_torn(file: BinaryIO, size: int, head: bytes) -> bool:
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
