"""The way in: `holdfast` and `python -m holdfast`."""

from __future__ import annotations

import sys

from holdfast.words.errors import HoldfastError, PlatformUnsupported


def main() -> None:
    try:
        if sys.platform == "win32":
            raise PlatformUnsupported(
                "Holdfast runs on macOS and Linux.", next_step="on Windows, use it inside WSL: wsl --install"
            )
        from holdfast.cli.app import app  # noqa: PLC0415 - what it imports does not exist on Windows

        app()
    except HoldfastError as error:
        _tell(error)
        sys.exit(error.exit_status)


def _tell(error: HoldfastError) -> None:
    arguments = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    if "--json" in arguments:
        import msgspec  # noqa: PLC0415 - only a failing command needs it here

        said = {"error": error.what, "kind": type(error).__name__, "next": error.next_step, "look_at": error.look_at}
        print(msgspec.json.encode({**said, "exit_status": error.exit_status}).decode())
    else:
        print(f"holdfast: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
