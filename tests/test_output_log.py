"""The record of a stream within its bound, and what a person reads of it."""

import errno
import os

import pytest

from holdfast.process.output_log import OutputLog, newest_part, older_part, read_output, readable_lines


def numbered(first, last):
    return b"".join(b"%07d\n" % n for n in range(first, last))


def small_log(path):
    return OutputLog(path, head_bytes=800, part_bytes=1600)


def test_a_short_stream_is_one_plain_file(tmp_path):
    """What fits is recorded as it is, and an empty stream leaves an empty file."""
    log = small_log(tmp_path / "stdout.log")
    assert (tmp_path / "stdout.log").read_bytes() == b""
    log.write(numbered(0, 100))
    log.close()
    assert (tmp_path / "stdout.log").read_bytes() == numbered(0, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["stdout.log"]


def test_a_long_stream_keeps_its_beginning_and_its_end(tmp_path):
    """Never more than head and two parts; a reader gets the two ends, and the number of bytes between them."""
    path = tmp_path / "stdout.log"
    log = small_log(path)
    for n in range(0, 5000, 7):
        log.write(numbered(n, min(n + 7, 5000)))
    log.close()
    assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= 800 + 2 * 1600
    read = b"".join(read_output(path))
    assert read.startswith(numbered(0, 100))
    assert read.endswith(numbered(4900, 5000))
    left_out = int(read.split(b"[holdfast: ")[1].split()[0])
    marker = b"\n[holdfast: %d bytes left out]\n" % left_out
    assert len(read) - len(marker) + left_out == len(numbered(0, 5000))


def test_a_stream_of_middle_length_has_no_gap(tmp_path):
    """The parts join without a byte lost or doubled."""
    path = tmp_path / "stdout.log"
    log = small_log(path)
    log.write(numbered(0, 350))
    log.close()
    assert older_part(path).exists()
    assert newest_part(path).exists()
    assert b"".join(read_output(path)) == numbered(0, 350)


def test_a_full_disk_disturbs_nothing_and_is_told(tmp_path, monkeypatch):
    """While nothing can be written, writing does nothing; when it can again, the log goes on and says what is missing."""
    path = tmp_path / "stdout.log"
    log = small_log(path)
    log.write(b"before\n")
    full = True
    really_write = os.write

    def write(fd, data):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    log.write(b"lost\n")
    log.write(b"lost too\n")
    full = False
    log.write(b"after\n")
    log.close()
    assert path.read_bytes() == b"before\n\n[holdfast: 14 bytes not recorded: No space left on device]\nafter\n"


def test_a_log_that_cannot_be_opened_is_opened_later(tmp_path):
    """A folder that is missing at first is no reason to give up."""
    log = small_log(tmp_path / "later" / "stdout.log")
    log.write(b"early\n")
    (tmp_path / "later").mkdir()
    log.write(b"late\n")
    log.close()
    assert (
        (tmp_path / "later" / "stdout.log").read_bytes().endswith(b"not recorded: No such file or directory]\nlate\n")
    )


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (b"\r  0%|    |\r 50%|##  |\r100%|####|\nnext\n", ["100%|####|", "next"]),
        (b"\r 50%|##  |\x1b[K", [" 50%|##  |"]),
        (b"\x1b[1;31mError\x1b[0m \x1b]8;;file://x\x1b\\here\x1b]8;;\x1b\\\x07\n", ["Error here"]),
        (b"\x1b[2K\x1b[1G\x1b[A\x1b(Bframe\n", ["frame"]),
        (b"bad \xff byte\n", ["bad \ufffd byte"]),
        ("µ → ✓\n".encode(), ["µ → ✓"]),
        (b"tab\tstays, bell\x07 and null\x00 go\n", ["tab\tstays, bell and null go"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_output_as_a_person_would_see_it(output, lines):
    """No colours or cursor movements, progress bars as they stood at the end."""
    assert readable_lines(output, 10) == lines


def test_what_is_shown_is_bounded():
    """So many lines, and none without end."""
    assert readable_lines(numbered(0, 50), 3) == ["0000047", "0000048", "0000049"]
    (line,) = readable_lines(b"a" * 100_000 + b"z", 5)
    assert len(line) < 2100
    assert line.startswith("aaa")
    assert line.endswith("z")
