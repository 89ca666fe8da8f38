"""System commands, run with a timeout and without raising."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

MAX_TEXT_CHARS = 4_000_000
"""Characters that are kept; no expected output is nearly that long."""


class CommandOutput(NamedTuple):
    text: str
    problem: str | None = None
    """Why the text is missing or incomplete."""


def run_command(command: list[str], seconds: float) -> CommandOutput:
    name = command[0]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(seconds, 0.05),
            env={**os.environ, "LC_ALL": "C", "LANG": "C"},
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return CommandOutput(_decode(error.stdout), f"{name} did not finish within {seconds:.1f} s")
    except OSError as error:
        return CommandOutput("", f"{name} could not be run: {error.strerror or error}")
    text = _decode(result.stdout)
    if result.returncode == 0:
        return CommandOutput(text)
    errors = _decode(result.stderr).strip().splitlines()
    return CommandOutput(
        text, f"{name} failed with exit code {result.returncode}: {errors[0] if errors else 'no error message'}"
    )


def _decode(raw: bytes | str | None) -> str:
    if not raw:
        return ""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return text[:MAX_TEXT_CHARS]
