r"""One snapshot on disk: a magic line, a JSON header, the bytes of the tensors, and a hash of everything before it.

    holdfast snapshot 2\n | length of the header | header | padding | bytes of the tensors | hash | whole\n

The header contains the state as `tree` (encoding.py) and the layout of each tensor in the bytes as `tensors` (capture.py). Reading a
file runs no code from it.
"""

import ctypes
import hashlib
import json
import os
import struct

from .capture import available_memory, place_in
from .encoding import unflatten
from .fs import OfAnotherUser, open_own, write_whole

MAGIC = b"holdfast snapshot 2\n"
END = b"whole\n"
_LENGTH = struct.Struct("<Q")
_ALIGNED = 64
_CHUNK = 1 << 22
_DIGEST = 32
MAX_HEADER = 1 << 28
MIN_VALUE = len(MAGIC) + _LENGTH.size + _DIGEST + len(END)


class CorruptSnapshot(Exception):
    """A file that is not a complete snapshot; the message is the reason."""


class NotOurs(CorruptSnapshot):
    """A snapshot of another user: it may be intact, but it is not used."""


def write(files, path, header, raw):
    """Write a snapshot and return its hash, which identifies the content. `header` is JSON text."""
    digest = hashlib.sha256()
    write_whole(files, path, _chunks(header, raw, digest))
    return digest.hexdigest()


def _chunks(header, raw, digest):
    text = header.encode("utf-8")
    head = MAGIC + _LENGTH.pack(len(text)) + text
    head += b"\0" * (-len(head) % _ALIGNED)
    digest.update(head)
    yield head
    for at in range(0, len(raw), _CHUNK):
        chunk = raw[at : at + _CHUNK]
        digest.update(chunk)
        yield chunk
    yield digest.digest() + END


def read(torch, path):
    """Return (header, state, hash) of a snapshot, with the tensors in host memory. Raise CorruptSnapshot if it is not intact."""
    try:
        block, digest = _verified(torch, path)
        header, body = _header_of(block)
        data = block[body : block.numel() - _DIGEST - len(END)]
        typed = {}
        tensors = [place_in(torch, data, layout, typed) for layout in header["tensors"]]
        return header, unflatten(torch, header["tree"], tensors), digest
    except CorruptSnapshot:
        raise
    except Exception as error:
        words = str(error).split("\n")[0][:300] or type(error).__name__
        raise CorruptSnapshot("it cannot be parsed: %s" % words) from None


def _header_of(block):
    """Return the header and the offset of the tensor bytes."""
    start = len(MAGIC) + _LENGTH.size
    length = _LENGTH.unpack(_bytes_of(block, len(MAGIC), start))[0]
    body = start + length + -(start + length) % _ALIGNED
    if length > MAX_HEADER or body > block.numel():
        raise CorruptSnapshot("its header is longer than the file")
    return json.loads(_bytes_of(block, start, start + length)), body


def _verified(torch, path):
    """Return all bytes of the file and their hash. Raise CorruptSnapshot if they are not what was written."""
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _refuse_others(file, size)
            room = available_memory()
            if room is not None and size > room:
                raise CorruptSnapshot("it needs %d MiB of memory, but only %d MiB are free" % (size >> 20, room >> 20))
            block = torch.empty(size, dtype=torch.uint8, device="cpu")
            into = _memory(block)
            filled = 0
            while filled < size:
                got = file.readinto(into[filled:])
                if not got:
                    raise CorruptSnapshot("it ends after %d of %d bytes" % (filled, size))
                filled += got
    except OfAnotherUser as error:
        raise NotOurs(error.strerror) from None
    except OSError as error:
        raise CorruptSnapshot(error.strerror or str(error)) from None
    end = size - _DIGEST - len(END)
    digest = hashlib.sha256(into[:end])
    if bytes(into[end : end + _DIGEST]) != digest.digest():
        raise CorruptSnapshot("its content is not what was written")
    return block, digest.hexdigest()


def _refuse_others(file, size):
    """Check the size, the beginning and the end of the file before reading all of it."""
    if size < MIN_VALUE:
        raise CorruptSnapshot("it has only %d bytes" % size)
    if file.read(len(MAGIC)) != MAGIC:
        raise CorruptSnapshot("it is not a Holdfast snapshot")
    file.seek(size - len(END))
    if file.read(len(END)) != END:
        raise CorruptSnapshot("its end is missing")
    file.seek(0)


def digest_of(path):
    """Return the hash of an intact snapshot without loading it into memory."""
    digest = hashlib.sha256()
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _refuse_others(file, size)
            left = size - _DIGEST - len(END)
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise CorruptSnapshot("it is truncated")
                digest.update(chunk)
                left -= len(chunk)
            if file.read(_DIGEST) != digest.digest():
                raise CorruptSnapshot("its content is not what was written")
    except OfAnotherUser as error:
        raise NotOurs(error.strerror) from None
    except OSError as error:
        raise CorruptSnapshot(error.strerror or str(error)) from None
    return digest.hexdigest()


def _memory(block):
    return memoryview((ctypes.c_char * block.numel()).from_address(block.data_ptr())).cast("B")


def _bytes_of(block, start, stop):
    if not 0 <= start <= stop <= block.numel():
        raise CorruptSnapshot("its header is longer than the file")
    return bytes(_memory(block)[start:stop])
