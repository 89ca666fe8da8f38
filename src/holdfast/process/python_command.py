"""Commands that run Holdfast's own programs in another interpreter, and the PYTHONPATH of that interpreter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.probe.holdfast_probe import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START = "import sys; sys.path[:] = [p for p in sys.path if p]; exec(compile(sys.argv.pop(1), '<holdfast>', 'exec'))"
"""`python -c` puts the working directory first on sys.path, and before Python 3.11 no environment variable prevents it:
a json.py in a data folder would run instead of the standard one."""


def program(python: Sequence[str], text: str, *arguments: str) -> list[str]:
    """Return the command that runs this source text in that interpreter.

    Nothing is imported from the working directory unless the user's own PYTHONPATH names it.
    """
    return [*python, "-c", START, text, *arguments]


def python_path(environment: Mapping[str, str], *first: str) -> dict[str, str]:
    """Return PYTHONPATH as a variable to set: `first`, then the user's entries without that of an outer supervisor.

    An empty entry means the working directory and is kept; an empty PYTHONPATH means nothing and adds no entry. Without
    any entry the result is empty: PYTHONPATH must be unset.
    """
    given = environment.get("PYTHONPATH", "")
    outer = environment.get(protocol.PROBE_PATH)
    entries = [*first, *(entry for entry in given.split(os.pathsep) if entry != outer)] if given else list(first)
    if not entries:
        return {}
    # A single empty entry would result in an empty variable.
    return {"PYTHONPATH": os.pathsep.join(entries) or os.pathsep}
