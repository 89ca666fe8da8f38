"""Asking a command of the system, bounded in time, without ever raising."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

MAX_TEXT_CHARS = 4_000_000
"""Characters looked at; no answer that we ask for is near that long."""


class CommandOutput(NamedTuple):
    text: str
    problem: str | None = None
    """Why the text is missing or incomplete."""


def run_command(command: list[str], seconds: float) -> CommandOutput:
    name = command[0]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(seconds, 0.05),
            env={**os.environ, "LC_ALL": "C", "LANG": "C"},
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return CommandOutput(_decode(late.stdout), f"{name} had not finished after {seconds:.1f} s")
    except OSError as error:
        return CommandOutput("", f"{name} could not be run: {error.strerror or error}")
    text = _decode(done.stdout)
    if done.returncode == 0:
        return CommandOutput(text)
    said = _decode(done.stderr).strip().splitlines()
    return CommandOutput(text, f"{name} ended with {done.returncode}: {said[0] if said else 'it did not say why'}")


def _decode(raw: bytes | str | None) -> str:
    if not raw:
        return ""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return text[:MAX_TEXT_CHARS]
