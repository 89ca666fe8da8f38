r"""One snapshot on disk: a magic line, a JSON header, the bytes of the tensors, and a hash of everything before it.

    holdfast snapshot 2\n | length of the header | header | padding | bytes of the tensors | hash | whole\n

The header contains the state as `tree` (encoding.py) and the layout of each tensor in the bytes as `tensors`
(capture.py). Reading a file runs no code from it.
"""

import ctypes
import hashlib
import json
import os
import struct

from .capture import available_memory, view_in_block
from .encoding import unflatten
from .fs import OwnedByAnotherUser, open_own, write_atomically

MAGIC = b"holdfast snapshot 2\n"
END = b"whole\n"
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64
_CHUNK = 1 << 22
_DIGEST = 32
MAX_HEADER = 1 << 28
MIN_SIZE = len(MAGIC) + _LENGTH.size + _DIGEST + len(END)


class CorruptSnapshot(Exception):
    """A file that is not a complete snapshot; the message is the reason."""


class ForeignSnapshot(CorruptSnapshot):
    """A snapshot of another user: it may be intact, but it is not used."""


def write(files, path, header, raw):
    """Write a snapshot and return its hash, which identifies the content. `header` is JSON text."""
    digest = hashlib.sha256()
    write_atomically(files, path, _chunks(header, raw, digest))
    return digest.hexdigest()


def _chunks(header, raw, digest):
    text = header.encode("utf-8")
    head = MAGIC + _LENGTH.pack(len(text)) + text
    head += b"\0" * (-len(head) % _ALIGNMENT)
    digest.update(head)
    yield head
    for offset in range(0, len(raw), _CHUNK):
        chunk = raw[offset : offset + _CHUNK]
        digest.update(chunk)
        yield chunk
    yield digest.digest() + END


def read(torch, path):
    """Return (header, state, hash) of a snapshot, with the tensors in host memory. Raise CorruptSnapshot if it is not
    intact.
    """
    try:
        block, digest = _read_verified(torch, path)
        header, body = _read_header(block)
        data = block[body : block.numel() - _DIGEST - len(END)]
        typed = {}
        tensors = [view_in_block(torch, data, layout, typed) for layout in header["tensors"]]
        return header, unflatten(torch, header["tree"], tensors), digest
    except CorruptSnapshot:
        raise
    except Exception as error:
        message = str(error).split("\n")[0][:300] or type(error).__name__
        raise CorruptSnapshot("it cannot be parsed: %s" % message) from None


def _read_header(block):
    """Return the header and the offset of the tensor bytes."""
    start = len(MAGIC) + _LENGTH.size
    length = _LENGTH.unpack(_read_bytes(block, len(MAGIC), start))[0]
    body = start + length + -(start + length) % _ALIGNMENT
    if length > MAX_HEADER or body > block.numel():
        raise CorruptSnapshot("its header is longer than the file")
    return json.loads(_read_bytes(block, start, start + length)), body


def _read_verified(torch, path):
    """Return all bytes of the file and their hash. Raise CorruptSnapshot if they are not what was written."""
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_format(file, size)
            free = available_memory()
            if free is not None and size > free:
                raise CorruptSnapshot("it needs %d MiB of memory, but only %d MiB is free" % (size >> 20, free >> 20))
            block = torch.empty(size, dtype=torch.uint8, device="cpu")
            view = _as_memoryview(block)
            filled = 0
            while filled < size:
                count = file.readinto(view[filled:])
                if not count:
                    raise CorruptSnapshot("it ends after %d of %d bytes" % (filled, size))
                filled += count
    except OwnedByAnotherUser as error:
        raise ForeignSnapshot(error.strerror) from None
    except OSError as error:
        raise CorruptSnapshot(error.strerror or str(error)) from None
    end = size - _DIGEST - len(END)
    digest = hashlib.sha256(view[:end])
    if bytes(view[end : end + _DIGEST]) != digest.digest():
        raise CorruptSnapshot("its content is not what was written")
    return block, digest.hexdigest()


def _check_format(file, size):
    """Check the size, the beginning and the end of the file before reading all of it."""
    if size < MIN_SIZE:
        raise CorruptSnapshot("it has only %d bytes" % size)
    if file.read(len(MAGIC)) != MAGIC:
        raise CorruptSnapshot("it is not a Holdfast snapshot")
    file.seek(size - len(END))
    if file.read(len(END)) != END:
        raise CorruptSnapshot("its end is missing")
    file.seek(0)


def compute_digest(path):
    """Return the hash of an intact snapshot without loading it into memory."""
    digest = hashlib.sha256()
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_format(file, size)
            left = size - _DIGEST - len(END)
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise CorruptSnapshot("it is truncated")
                digest.update(chunk)
                left -= len(chunk)
            if file.read(_DIGEST) != digest.digest():
                raise CorruptSnapshot("its content is not what was written")
    except OwnedByAnotherUser as error:
        raise ForeignSnapshot(error.strerror) from None
    except OSError as error:
        raise CorruptSnapshot(error.strerror or str(error)) from None
    return digest.hexdigest()


def _as_memoryview(block):
    return memoryview((ctypes.c_char * block.numel()).from_address(block.data_ptr())).cast("B")


def _read_bytes(block, start, stop):
    if not 0 <= start <= stop <= block.numel():
        raise CorruptSnapshot("its header is longer than the file")
    return bytes(_as_memoryview(block)[start:stop])
