"""Whether a checkpoint file was cut off while it was written. Nothing is unpickled, and no file is read whole."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

_ZIP = b"PK\x03\x04"
_LONGEST_HEADER = 100_000_000
"""The safetensors format's own bound on its header."""
_LARGEST_DIRECTORY = 64_000_000
"""Above it an archive is not looked into: no checkpoint has so many members."""
_LOOKED_AT = 2000
"""Members of an archive whose beginnings are looked at."""
_NEVER_ZERO = frozenset({".pt", ".pth", ".ckpt"})


def is_torn(path: str | os.PathLike[str]) -> bool:
    """True where the file cannot be whole: an archive (torch.save) without its directory, a safetensors file shorter than
    its header says, an empty file. A format without a check (the old pickle) passes unless it is empty. A folder is torn
    when a file in it is. Raises OSError where there is nothing to read.
    """
    place = Path(path)
    if place.is_dir():
        return any(is_torn(file) for file in sorted(place.rglob("*")) if file.is_file() and file.suffix in _CHECKED)
    with place.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(9)
        if size == 0 or (size < len(_ZIP) and _ZIP.startswith(head)):
            return True
        if head.startswith(_ZIP):
            return _archive_torn(file, size)
        if place.suffix == ".safetensors" or (head[8:9] == b"{" and not head.startswith(b"\x80")):
            return _safetensors_torn(file, size, head)
        return place.suffix in _NEVER_ZERO and not any(head)


_CHECKED = _NEVER_ZERO | {".safetensors", ".bin", ".distcp"}


def _archive_torn(file: BinaryIO, size: int) -> bool:
    """The directory of a zip archive is written last, so a torn one mostly has none. Where there is one, every member must
    lie before it and begin as members do: a file that the disk lost a part of can have its right length.
    """
    file.seek(max(0, size - 65_557))
    tail = file.read()
    directory_size = _directory_size(tail)
    if directory_size is None or directory_size > _LARGEST_DIRECTORY:
        return directory_size is None
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            members, directory = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, OverflowError):
        return True
    for member in members[:_LOOKED_AT]:
        if member.header_offset < 0 or member.header_offset + member.compress_size > directory:
            return True
        file.seek(member.header_offset)
        if file.read(4) != _ZIP:
            return True
    return not members


def _directory_size(tail: bytes) -> int | None:
    """As the archive's last record says, or the longer one before it, where the number does not fit."""
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        return None
    (size,) = struct.unpack_from("<L", tail, at + 12)
    if size != 0xFFFFFFFF:
        return int(size)
    longer = tail.rfind(b"PK\x06\x06", 0, at)
    if longer < 0 or longer + 48 > at:
        return None
    return int(struct.unpack_from("<Q", tail, longer + 40)[0])


def _safetensors_torn(file: BinaryIO, size: int, head: bytes) -> bool:
    if size < 8:
        return True
    (length,) = struct.unpack("<Q", head[:8])
    if length > min(size - 8, _LONGEST_HEADER):
        return True
    file.seek(8)
    try:
        tensors = json.loads(file.read(length))
        ends = [int(t["data_offsets"][1]) for name, t in tensors.items() if name != "__metadata__"]
    except (ValueError, AttributeError, KeyError, IndexError, TypeError):
        return True
    return bool(8 + length + max(ends, default=0) > size)
