"""Entry point of `holdfast` and `python -m holdfast`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any

from holdfast.schema.errors import HoldfastError, PlatformUnsupported


class OutputFailed(OSError):
    """Holdfast's own output cannot be written: the disk is full, or the reader is gone."""


class _Output(io.FileIO):
    """Standard output or standard error. A write error raises OutputFailed, unlike an error of another file."""

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
        status = _exit_without_output(error)
    try:
        sys.stderr.flush()
    except OutputFailed:  # nobody reads it any more; this does not affect the exit status
        _redirect_to_devnull(2)
    sys.exit(status)


def _exit_without_output(error: OutputFailed) -> int:
    if error.errno != errno.EPIPE:  # whoever closes a pipe has read enough
        with contextlib.suppress(OSError):
            reason = error.strerror or "it cannot be written"
            os.write(2, f"holdfast: the output could not be written: {reason}.\n".encode())
    _redirect_to_devnull(1)
    _redirect_to_devnull(2)
    return 1


def _redirect_to_devnull(number: int) -> None:
    """Discard what Python still writes to this stream at exit: a second failure would change the exit status."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _run() -> int:
    try:
        _refuse_windows()
        import typer  # noqa: PLC0415 - open the streams before importing anything else

        from holdfast.cli.app import app  # noqa: PLC0415 - it imports modules that do not exist on Windows

        status = app(standalone_mode=False)
    except HoldfastError as error:
        _print_error(error)
        return error.exit_status
    except typer.Abort:
        return 1
    except Exception as error:
        if not hasattr(error, "exit_code") or not hasattr(error, "show"):
            raise
        return _print_usage_error(error)
    return status if isinstance(status, int) else 0


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise PlatformUnsupported(
            "Holdfast only runs on macOS and Linux.", next_step="on Windows, use it inside WSL: wsl --install"
        )


def _open_streams() -> None:
    """Open closed streams (`2>&-`) as /dev/null. Otherwise the next opened file would get their number and the output.

    Characters that a stream cannot encode are replaced: an ASCII terminal is no reason to exit.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    sys.stdout, sys.stderr = _wrap_stream(sys.stdout), _wrap_stream(sys.stderr)


def _wrap_stream(stream: Any) -> Any:
    """Return the same stream, with write errors raised as OutputFailed."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # an in-memory stream
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _print_error(error: HoldfastError) -> None:
    from holdfast.render.console import print_json, say_error  # noqa: PLC0415 - only needed if a command fails

    if _wants_json():
        fields = {"error": error.what, "kind": type(error).__name__, "next": error.next_step, "look_at": error.look_at}
        print_json({**fields, "exit_status": error.exit_status})
    else:
        with contextlib.suppress(OutputFailed):  # the exit status reports it too
            say_error(str(error))


def _wants_json() -> bool:
    """Check for --json. Arguments after `--` belong to the training."""
    return "--json" in (sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:])


def _print_usage_error(error: Any) -> int:
    """Print typer's message about an invalid command line, which quotes the user's input."""
    from holdfast.render.console import print_json, print_lines  # noqa: PLC0415

    if _wants_json():
        command = getattr(getattr(error, "ctx", None), "command_path", "") or "holdfast"
        step = f"see the usage: {command} --help"
        fields = {"error": error.format_message(), "kind": "UsageError", "next": step, "look_at": ""}
        print_json({**fields, "exit_status": int(error.exit_code)})
        return int(error.exit_code)
    text = io.StringIO()
    error.show(file=text)
    print_lines(text.getvalue().rstrip("\n").split("\n"), file=sys.stderr)
    return int(error.exit_code)


if __name__ == "__main__":
    main()
