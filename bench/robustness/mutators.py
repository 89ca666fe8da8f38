"""Mutations of files. Each takes the bytes and a seeded generator, so that a case can be repeated from its number.

Mutators in CONTENT return changed bytes. The entries of PLACE name replacements for the file (see `replace`).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import sys
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path

NUMBERS = [
    b"NaN", b"-Infinity", b"1e999", b"-1e999", b"1e308", b"-1", b"0", b"9223372036854775807", b"18446744073709551616",
    b"9" * 400, b"1" + b"0" * 5000, b"1099511627776", b"4294967296", b"-0.0", b"0x10", b"1_0", b"null", b"true", b'""',
    b"[]", b"{}", b"190:20:30:30:30:30:30:30", b"\xd9\xa3",
]  # fmt: skip
CONTROLS = [
    b"\x1b[31m", b"\x1b]0;title\x07", b"\x1b[2J", b"\x1b]8;;http://x\x1b\\", b"\x9b31m", "\u009b31m".encode(), b"\x00", b"\x07\x08", b"\r", b"\x7f",
    "\u202e\u2066".encode(), "\u2028".encode(), b"\\u001b[31m", b"\\u0000", b"\\ud800", b"\\u009b2J",
]  # fmt: skip
INVALID = [b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80", b"\xc0\xaf", b"\x80"]
NESTED = [
    (b"[", b"]"),
    (b"{", b"}"),
    (b'{"a":', b"}"),
    (b"[[", b"]]"),
    (b"(", b")"),
    (b"a.", b""),
    (b"- ", b""),
    (b"? ", b""),
]
ALIASES = (
    b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    b"b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
    b"c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
    b"d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
    b"e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\n"
    b"f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n"
    b"g: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]\n"
)
TAGS = [
    b"!!python/object/apply:os.system ['touch CANARY']",
    b"!!python/name:os.system",
    b"!!binary AAAA",
    b"<<: *a",
    b"<<: [*a, *a]",
]
STRANGE_PATHS = [
    b"../../../../etc/passwd",
    b"/dev/zero",
    b"/proc/self/mem",
    b"~nosuchuser/x",
    b"x\x00y",
    b"a/" * 35_000,
    b"/",
    b".",
    b"",
    b"\\\\host\\x",
    b"//x",
    b"**/**/**/*",
]


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    corrupt = bytearray(data)
    for _ in range(chance.randint(1, 20) if corrupt else 0):
        corrupt[chance.randrange(len(corrupt))] ^= 1 << chance.randrange(8)
    return bytes(corrupt)


def truncate(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] if chance.random() < 0.7 else data[at:]


def duplicate(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.randint(1, 600))
    return data[:at] + data[at:end] * chance.choice([2, 3, 30, 500]) + data[end:]


def duplicate_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        at = chance.randrange(len(lines))
        lines[at:at] = [chance.choice(lines)] * chance.choice([1, 2, 50])
    return b"".join(lines)


def shuffle_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def drop_lines(data: bytes, chance: random.Random) -> bytes:
    return b"".join(line for line in data.splitlines(keepends=True) if chance.random() > 0.3)


def splice(data: bytes, chance: random.Random) -> bytes:
    a, b = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[a:b] + data[at + (b - a) * chance.randint(0, 1) :]


def insert_noise(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randint(1, 300)) + data[at:]


def _at_match(pattern: bytes, data: bytes, chance: random.Random) -> tuple[int, int]:
    found = [match.span() for match in re.finditer(pattern, data)]
    if found:
        return chance.choice(found)
    at = chance.randrange(len(data) + 1)
    return at, at


def change_number(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 3)):
        start, end = _at_match(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?", data, chance)
        data = data[:start] + chance.choice(NUMBERS) + data[end:]
    return data


def change_every_number(data: bytes, chance: random.Random) -> bytes:
    other = chance.choice(NUMBERS[:9])
    return re.sub(rb"\b\d+\.\d+\b" if chance.random() < 0.5 else rb"\b\d+\b", lambda _: other, data)


def change_word(data: bytes, chance: random.Random) -> bytes:
    """Replace a word with another word of the file, a number, a control sequence, or nothing."""
    words = re.findall(rb"[A-Za-z_][\w./-]*", data) or [b"x"]
    start, end = _at_match(rb"[A-Za-z_][\w./-]*", data, chance)
    return data[:start] + chance.choice([chance.choice(words), chance.choice(NUMBERS), b"", *CONTROLS[:4]]) + data[end:]


def change_path(data: bytes, chance: random.Random) -> bytes:
    # Bounded, and only at the start of a word: mutated files contain words of several megabytes.
    path = rb"(?<![\w.-])(?:[\w.-]{0,200}/[\w./-]{1,400}|[\w-]{1,200}\.[a-z]{2,5}\b)"
    start, end = _at_match(path, data, chance)
    return data[:start] + chance.choice(STRANGE_PATHS) + data[end:]


def insert_controls(data: bytes, chance: random.Random) -> bytes:
    """Insert control sequences, mostly inside words, because names and messages consist of words."""
    for _ in range(chance.randint(1, 6)):
        start, end = _at_match(rb"[A-Za-z]{3,}", data, chance)
        at = chance.randint(start, end)
        data = data[:at] + chance.choice(CONTROLS) + data[at:]
    return data


def insert_invalid(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(INVALID) * chance.choice([1, 40]) + data[at:]


def insert_zeros(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    count = chance.choice([1, 50, 4096])
    return data[:at] + b"\0" * count + data[at + chance.choice([0, count]) :]


def nest(data: bytes, chance: random.Random) -> bytes:
    start, end = _at_match(rb'"[^"\n]{0,60}"|-?\d+(\.\d+)?', data, chance)
    opening, closing = chance.choice(NESTED)
    depth = chance.choice([50, 2_000, 200_000])
    inner = data[start:end] or b"1"
    return data[:start] + opening * depth + inner + closing * (depth if chance.random() < 0.7 else 0) + data[end:]


def lengthen_line(data: bytes, chance: random.Random) -> bytes:
    start, end = _at_match(rb"[A-Za-z0-9]+", data, chance)
    filler = chance.choice([b"x", b"9", b"a-", b"\\", b" ", b",", b'"', b"=", b"\xc3\xa9"])
    return data[:start] + filler * chance.choice([3_000, 70_000, 1_200_000]) + data[end:]


def add_aliases(data: bytes, chance: random.Random) -> bytes:
    """Add YAML aliases that expand exponentially."""
    merged = chance.choice(
        [b"names: *g\n", b"names: [*g, *g]\nnc: *g\n", b"<<: *g\n", b"train: *g\npath: *f\n", b"lr0: *e\n"]
    )
    return ALIASES + data + b"\n" + merged


def add_tags(data: bytes, chance: random.Random) -> bytes:
    start, end = _at_match(rb"(?<=: )[^\n]+", data, chance)
    return data[:start] + chance.choice(TAGS) + data[end:]


def empty(_data: bytes, chance: random.Random) -> bytes:
    return chance.choice(
        [
            b"",
            b"\n",
            b" ",
            b"\xef\xbb\xbf",
            b"{}",
            b"[]",
            b"null",
            b"\xff\xfe" + "epoch,step\n1,2\n".encode("utf-16-le"),
        ]
    )


def leave(data: bytes, _chance: random.Random) -> bytes:
    """Return the data unchanged: some inputs are hostile without a mutation."""
    return data


CONTENT = [
    flip_bits, truncate, duplicate, duplicate_lines, shuffle_lines, drop_lines, splice, insert_noise, change_number, change_number,
    change_every_number, change_word, change_word, change_path, insert_controls, insert_controls, insert_invalid, insert_zeros, nest, nest,
    lengthen_line, empty,
]  # fmt: skip
YAML = [*CONTENT, add_aliases, add_aliases, add_tags, add_tags]
BINARY = [flip_bits, flip_bits, truncate, duplicate, splice, insert_noise, insert_zeros, change_number, empty]


def mutate(data: bytes, chance: random.Random, mutators: list) -> tuple[bytes, list[str]]:
    """Apply one to three mutators. Return the result and their names."""
    names = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        mutator = chance.choice(mutators)
        names.append(mutator.__name__)
        data = mutator(data, chance)[: 4 << 20]
    return data, names


def mutate_inside(data: bytes, name: str, chance: random.Random, mutators: list) -> tuple[bytes, list[str]]:
    """Like `mutate`, but for half of all archives and snapshots keep the checksums valid."""
    corrupt: tuple[bytes, list[str]] | None = None
    if chance.random() < 0.5:
        try:
            if name.endswith(".snapshot"):
                corrupt = _inside_snapshot(data, chance)
            elif data.startswith(b"PK"):
                corrupt = _inside_archive(data, chance, mutators)
            elif name.endswith(".safetensors"):
                length = struct.unpack("<Q", data[:8])[0]
                text, names = mutate(data[8 : 8 + length], chance, CONTENT)
                corrupt = struct.pack("<Q", len(text)) + text + data[8 + length :], ["inside", *names]
        except (zipfile.BadZipFile, struct.error, OSError):
            corrupt = None
    return corrupt or mutate(data, chance, mutators)


def _inside_snapshot(data: bytes, chance: random.Random) -> tuple[bytes, list[str]]:
    """Mutate the header and keep the length and the hash valid."""
    magic = data.index(b"\n") + 1
    (length,) = struct.unpack("<Q", data[magic : magic + 8])
    start = magic + 8 + length
    header, body = data[magic + 8 : start], data[start + -start % 64 : -38]
    header, names = mutate(header, chance, CONTENT)
    made = data[:magic] + struct.pack("<Q", len(header)) + header
    made += b"\0" * (-len(made) % 64) + body
    return made + hashlib.sha256(made).digest() + b"whole\n", ["inside", *names]


def _inside_archive(data: bytes, chance: random.Random, mutators: list) -> tuple[bytes, list[str]]:
    made = io.BytesIO()
    names: list[str] = []
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(made, "w") as target:
        members = source.infolist()
        chosen = (
            chance.choice(members).filename
            if chance.random() < 0.5
            else next(m.filename for m in members if m.filename.endswith(".pkl"))
        )
        for member in members:
            content = source.read(member)
            if member.filename == chosen:
                content, names = mutate(content, chance, mutators)
            target.writestr(member, content)
    return made.getvalue(), ["inside", *names]


PLACE = [
    "fifo",
    "folder",
    "link to itself",
    "link to nothing",
    "link outside",
    "link to /dev/zero",
    "link to /dev/tty",
    "socket",
    "no rights",
    "gone",
    "large",
]


def replace(path: Path, how: str, outside: Path) -> None:
    """Replace the file with something else. `outside` is a file that must not change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.is_file() else b""
    path.unlink(missing_ok=True)
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
        (path / "inside").write_bytes(b"x")
    elif how == "link to itself":
        path.symlink_to(path.name)
    elif how == "link to nothing":
        path.symlink_to(outside.with_name("nothing-here"))
    elif how == "link outside":
        path.symlink_to(outside)
    elif how.startswith("link to /"):
        path.symlink_to(how.removeprefix("link to "))
    elif how == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is limited to 107 bytes
            made.bind(f"/proc/self/fd/{here}/{path.name}" if sys.platform.startswith("linux") else str(path))
            os.close(here)
    elif how == "no rights":
        path.write_bytes(data)
        path.chmod(0)
    elif how == "large":
        with path.open("wb") as file:
            file.write(data)
            file.truncate(600 << 20)  # sparse: uses no disk space
