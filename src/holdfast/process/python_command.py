"""How another interpreter is started: the PYTHONPATH that it gets, and our own programs in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.probe.holdfast_probe import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START = "import sys; sys.path[:] = [p for p in sys.path if p]; exec(compile(sys.argv.pop(1), '<holdfast>', 'exec'))"
"""`python -c` puts the working folder first on its path, and before Python 3.11 no variable prevents it: a json.py in a
folder of data would run in the place of Python's own."""


def program(python: Sequence[str], text: str, *arguments: str) -> list[str]:
    """The command that runs this text under that interpreter. Nothing is imported from the working folder, except where the
    user's own PYTHONPATH names it.
    """
    return [*python, "-c", START, text, *arguments]


def python_path(environment: Mapping[str, str], *first: str) -> dict[str, str]:
    """PYTHONPATH as a variable to set: what the user has, behind `first`, and without a supervisor's own entry around us.

    An empty entry means the working folder, and stays; an empty PYTHONPATH means nothing, and gets none. Without any entry
    the answer is empty: PYTHONPATH is to be unset.
    """
    given = environment.get("PYTHONPATH", "")
    outer = environment.get(protocol.PROBE_PATH)
    entries = [*first, *(entry for entry in given.split(os.pathsep) if entry != outer)] if given else list(first)
    if not entries:
        return {}
    # One empty entry alone would be an empty variable.
    return {"PYTHONPATH": os.pathsep.join(entries) or os.pathsep}
