"""Runs drills, one after the other, each in a scratch folder of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.process.python_command import program
from holdfast.schema.errors import UsageError
from holdfast.schema.shell_text import shell_quoted
from holdfast.simulator import outcome
from holdfast.simulator.drills import all_drills, drill_named, names
from holdfast.simulator.paths import DrillPaths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.simulator.drill import Drill

MAX_S = 300.0
"""A drill that takes longer is broken."""
GRACE_S = 20.0
SUPERVISE = "import sys; from holdfast.simulator.supervise import main; sys.exit(main(*sys.argv[1:]))"


def chosen(name: str) -> tuple[Drill, ...]:
    """One drill, or all. Raises UsageError where there is none of that name, or nothing to run it with."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "Drills train small models, and this Python has no torch.",
            next_step=f"install Holdfast where torch is, or: {shell_quoted(sys.executable)} -m pip install torch",
        )
    if name == "all":
        return all_drills()
    drill = drill_named(name)
    if drill is None:
        raise UsageError(
            f"There is no drill called {name!r}.", next_step=f"name one of these, or all: {', '.join(names())}"
        )
    return (drill,)


def run_all(drills: tuple[Drill, ...], folder: Path | None) -> Iterator[tuple[Drill, dict[str, Any] | None]]:
    """Each drill twice: before it, with None, and after it, with what came of it."""
    root = folder.absolute() if folder is not None else Path(tempfile.mkdtemp(prefix="holdfast-drills-"))
    without = _no_accelerator() if any(drill.accelerator for drill in drills) else None
    for drill in drills:
        yield drill, None
        why = _why_skipped(drill, without)
        yield drill, outcome.skipped(drill, why) if why is not None else run_drill(drill, root)


def run_drill(drill: Drill, root: Path) -> dict[str, Any]:
    root.mkdir(parents=True, exist_ok=True)
    places = DrillPaths(Path(tempfile.mkdtemp(prefix=f"{drill.name}-", dir=root)))
    began = time.monotonic()
    with places.log.open("wb") as log:
        process = subprocess.Popen(
            program([sys.executable], SUPERVISE, drill.name, str(places.folder)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for us: the supervisor is ended below, and ends its training
        )
        try:
            code = process.wait(MAX_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - began
    if code is None:
        return outcome.broken(drill, places, f"it had not ended after {MAX_S:.0f} s", seconds)
    if not (places.run / "summary.json").is_file():
        return outcome.broken(drill, places, f"its supervisor ended with {code} and left no summary", seconds)
    return outcome.judged(drill, places, seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A supervisor that is asked to terminate ends its training first."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _why_skipped(drill: Drill, without_accelerator: str | None) -> str | None:
    missing = [package for package in drill.needs if importlib.util.find_spec(package) is None]
    if missing:
        return f"this Python has no {' and no '.join(missing)}"
    return without_accelerator if drill.accelerator else None


def _no_accelerator() -> str | None:
    """Why there is none here. Read from torch's source: importing torch takes longer than everything else that we do."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    source = Path(torch.origin).parent / "utils" / "backend_registration.py"
    if source.is_file() and "_setup_privateuseone_for_python_backend" in source.read_text():
        return None
    return "the torch of this Python cannot have a device in Python (2.13 can)"
