"""Places where output is shown, as on a system where a pipe cannot be opened anew, so that it is shared and may block."""

import os
import sys
import threading

import pytest

from holdfast.process.sink import Sink


@pytest.fixture
def shared_pipe(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    read_end, write_end = os.pipe()
    sink = Sink(write_end)
    assert os.get_blocking(write_end), "other programs write there too"
    os.close(write_end)
    yield sink, read_end
    sink.close()
    os.close(read_end)


def test_everything_arrives(shared_pipe):
    """More than the pipe holds passes in order while somebody reads."""
    sink, read_end = shared_pipe
    data = bytes(range(256)) * 2000
    writer = threading.Thread(target=sink.write, args=(data,))
    writer.start()
    read = b""
    while len(read) < len(data):
        read += os.read(read_end, 1 << 16)
    writer.join(10)
    assert read == data


def test_giving_up_ends_a_write_that_waits(shared_pipe):
    """A thread that waits for a reader can be called back."""
    sink, read_end = shared_pipe
    writer = threading.Thread(target=sink.write, args=(b"x" * 1_000_000,))
    writer.start()
    assert os.read(read_end, 1) == b"x"
    sink.cancel()
    writer.join(10)
    assert not writer.is_alive()
    sink.write(b"nothing of this is shown")


def test_a_reader_that_is_gone(monkeypatch):
    """Nobody is told, nothing is raised."""
    read_end, write_end = os.pipe()
    sink = Sink(write_end)
    os.close(write_end)
    os.close(read_end)
    sink.write(b"x")
    sink.write(b"y")
    sink.close()
