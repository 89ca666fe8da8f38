"""The way in: `holdfast` and `python -m holdfast`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any

from holdfast.schema.errors import HoldfastError, PlatformUnsupported


class OutputFailed(OSError):
    """What Holdfast itself prints cannot be written: a full disk, a reader that is gone."""


class _Output(io.FileIO):
    """Standard output or standard error, of which a fault can be told from one of any other file."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputFailed(error.errno, error.strerror) from error


def main() -> None:
    _open_streams()
    try:
        status = _run()
        sys.stdout.flush()
    except OutputFailed as error:
        status = _end_without_output(error)
    try:
        sys.stderr.flush()
    except OutputFailed:  # nobody reads it any more, which decides nothing
        _send_nowhere(2)
    sys.exit(status)


def _end_without_output(error: OutputFailed) -> int:
    if error.errno != errno.EPIPE:  # who closes a pipe has read enough
        with contextlib.suppress(OSError):
            reason = error.strerror or "it cannot be written"
            os.write(2, f"holdfast: the output could not be written: {reason}.\n".encode())
    _send_nowhere(1)
    _send_nowhere(2)
    return 1


def _send_nowhere(number: int) -> None:
    """What Python still has to write to this stream at its exit goes nowhere, so that it cannot fail again and change the exit status."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _run() -> int:
    try:
        _refuse_windows()
        import typer  # noqa: PLC0415 - the streams are open before anything else is imported

        from holdfast.cli.app import app  # noqa: PLC0415 - what it imports does not exist on Windows

        status = app(standalone_mode=False)
    except HoldfastError as error:
        _tell(error)
        return error.exit_status
    except typer.Abort:
        return 1
    except Exception as error:
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        return _tell_usage(error)
    return status if isinstance(status, int) else 0


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise PlatformUnsupported(
            "Holdfast runs on macOS and Linux.", next_step="on Windows, use it inside WSL: wsl --install"
        )


def _open_streams() -> None:
    """Streams that were closed (`2>&-`) are /dev/null: the next file to be opened would take their number, and be printed into.

    What a stream cannot encode is replaced: a terminal in ASCII is no reason to end.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    sys.stdout, sys.stderr = _telling(sys.stdout), _telling(sys.stderr)


def _telling(stream: Any) -> Any:
    """The same stream, whose faults are OutputFailed."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # somebody's own stream, in memory
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _tell(error: HoldfastError) -> None:
    from holdfast.render.console import print_json, say_error  # noqa: PLC0415 - only a failing command needs it here

    if _asks_for_json():
        said = {"error": error.what, "kind": type(error).__name__, "next": error.next_step, "look_at": error.look_at}
        print_json({**said, "exit_status": error.exit_status})
    else:
        with contextlib.suppress(OutputFailed):  # the exit status says it too
            say_error(str(error))


def _asks_for_json() -> bool:
    """What follows `--` belongs to the training."""
    return "--json" in (sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:])


def _tell_usage(error: Any) -> int:
    """What the command line could not be understood as, in typer's words: it quotes what was typed."""
    from holdfast.render.console import print_json, print_lines  # noqa: PLC0415

    if _asks_for_json():
        command = getattr(getattr(error, "ctx", None), "command_path", "") or "holdfast"
        step = f"see how it is called: {command} --help"
        said = {"error": error.format_message(), "kind": "UsageError", "next": step, "look_at": ""}
        print_json({**said, "exit_status": int(error.exit_code)})
        return int(error.exit_code)
    text = io.StringIO()
    error.show(file=text)
    print_lines(text.getvalue().rstrip("\n").split("\n"), file=sys.stderr)
    return int(error.exit_code)


if __name__ == "__main__":
    main()
