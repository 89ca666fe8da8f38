"""In which order streams are served, where the order is what matters."""

from types import SimpleNamespace

from holdfast.process.output_forwarder import Source, order_sources
from holdfast.process.streams import Streams


def test_the_stream_that_has_begun_a_line_goes_first():
    """A progress bar on stderr is ended before the next print on stdout; else the echo comes first, and stdout before stderr."""
    echo, out, err = (Source(stream, -1, None) for stream in (0, 1, 2))
    assert order_sources([err, out, echo], None) == [echo, out, err]
    assert order_sources([out, err], err) == [err, out]


def test_the_controlling_terminal_gets_the_new_size_last():
    """It is the one that sends SIGWINCH: by then the child must find the new size everywhere."""
    order = []
    streams = object.__new__(Streams)
    streams._terminal = SimpleNamespace(window=lambda: b"size")
    streams._terminals = {n: SimpleNamespace(resize=lambda size, n=n: order.append((n, size))) for n in (0, 1, 2)}
    streams.resize()
    assert order == [(2, b"size"), (1, b"size"), (0, b"size")]
