"""Whether a checkpoint is torn costs little, whatever its bytes declare."""

from __future__ import annotations

import io
import os
import struct
import zipfile

import pytest

from holdfast.storage import integrity
from holdfast.storage.integrity import is_truncated


class Counted(io.FileIO):
    """Counts what is read of it."""

    total = 0

    def read(self, size=-1):
        data = super().read(size)
        Counted.total += len(data)
        return data


def archive(members: int, *, body: bytes = b"xx") -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
        for number in range(members):
            file.writestr(f"archive/data/{number}", body)
    return raw.getvalue()


@pytest.fixture
def read(monkeypatch):
    """How many bytes were read for an answer."""

    def answer(path):
        Counted.total = 0
        monkeypatch.setattr(integrity, "open_regular", lambda place: Counted(place, "rb"))
        return is_truncated(path), Counted.total

    return answer


def test_a_huge_directory_is_not_read_whole(tmp_path, read):
    """70,000 members take as much as the bound allows, not a time that grows with what somebody wrote into the file."""
    path = tmp_path / "many.pt"
    path.write_bytes(archive(70_000, body=b""))
    is_cut, taken = read(path)
    assert not is_cut
    assert taken < 2 * integrity.MAX_DIRECTORY
    assert path.stat().st_size > 2 * taken


def test_declared_counts_allocate_nothing(tmp_path, read):
    """A directory of 2^62 bytes, members at 2^63, a count of 2^64: a few bytes are read, and the answer is that it is torn."""
    whole = archive(3)
    for size, offset in ((2**62, 0), (46, 2**63), (2**64 - 1, 2**64 - 1)):
        longer = struct.pack("<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**64 - 1, 2**64 - 1, size, offset)
        locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(whole), 1)
        last = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        path = tmp_path / "declared.pt"
        path.write_bytes(whole + longer + locator + last)
        is_cut, taken = read(path)
        assert is_cut
        assert taken < 100_000


def test_large_numbers_of_a_whole_archive_are_understood(tmp_path):
    """Zip64 as torch writes it for large files: sizes and offsets are in the extra field."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as file:
        with file.open("archive/data/0", "w", force_zip64=True) as member:
            member.write(b"x" * 100)
        file.writestr("archive/version", b"3")
    (tmp_path / "large.pt").write_bytes(raw.getvalue())
    assert not is_truncated(tmp_path / "large.pt")
    data = bytearray(archive(2))
    entry = data.find(b"PK\x01\x02")
    data[entry + 42 : entry + 46] = struct.pack("<L", 0xFFFFFFFF)  # and nothing in the extra field
    (tmp_path / "broken.pt").write_bytes(bytes(data))
    assert is_truncated(tmp_path / "broken.pt")


def test_every_cut_is_seen(tmp_path):
    """An archive that ends anywhere before its end, and one whose member does not begin as members do."""
    whole = archive(5)
    path = tmp_path / "cut.pt"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert is_truncated(path), length
    path.write_bytes(whole)
    assert not is_truncated(path)
    second = whole.find(b"PK\x03\x04", 4)
    path.write_bytes(whole[:second] + b"\0\0\0\0" + whole[second + 4 :])
    assert is_truncated(path)


def test_a_long_safetensors_header_is_not_read(tmp_path, read):
    """Beyond the bound nothing is claimed; only that the file is shorter than its header would be still tells."""
    path = tmp_path / "long.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", integrity.MAX_HEADER + 1))
        file.truncate(integrity.MAX_HEADER + 100)
    is_cut, taken = read(path)
    assert (is_cut, taken < 100) == (False, True)
    path.write_bytes(struct.pack("<Q", integrity.MAX_HEADER + 1))
    assert is_truncated(path)


def test_only_regular_files_are_opened(tmp_path):
    """A FIFO under a checkpoint's name is an error, not a wait without end; in a folder it is passed over."""
    os.mkfifo(tmp_path / "last.pt")
    with pytest.raises(OSError, match="regular"):
        is_truncated(tmp_path / "last.pt")
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    assert not is_truncated(tmp_path)
