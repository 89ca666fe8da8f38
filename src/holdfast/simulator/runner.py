"""Runs drills one after the other, each in its own scratch folder."""

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
from holdfast.schema.shell_text import shell_quote
from holdfast.simulator import outcome
from holdfast.simulator.drills import DRILLS, find_drill
from holdfast.simulator.paths import DrillPaths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.simulator.drill import Drill

MAX_S = 300.0
"""A drill that takes longer has failed."""
GRACE_S = 20.0
SUPERVISE = "import sys; from holdfast.simulator.supervise import main; sys.exit(main(*sys.argv[1:]))"


def select_drills(name: str) -> tuple[Drill, ...]:
    """Return the drill of this name, or all drills. Raise UsageError if there is no such drill, or no torch."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "Drills train small models, and this Python has no torch.",
            next_step="install Holdfast in an environment with torch, or run: "
            f"{shell_quote(sys.executable)} -m pip install torch",
        )
    if name == "all":
        return DRILLS
    drill = find_drill(name)
    if drill is None:
        names = ", ".join(drill.name for drill in DRILLS)
        raise UsageError(f"There is no drill called {name!r}.", next_step=f"use one of these names, or all: {names}")
    return (drill,)


def run_all(drills: tuple[Drill, ...], folder: Path | None) -> Iterator[tuple[Drill, dict[str, Any] | None]]:
    """Yield each drill twice: before it runs, with None, and afterwards, with its result."""
    root = folder.absolute() if folder is not None else Path(tempfile.mkdtemp(prefix="holdfast-drills-"))
    why_no_accelerator = _why_no_accelerator() if any(drill.accelerator for drill in drills) else None
    for drill in drills:
        yield drill, None
        why = _find_skip_reason(drill, why_no_accelerator)
        yield drill, outcome.describe_skipped(drill, why) if why is not None else run_drill(drill, root)


def run_drill(drill: Drill, root: Path) -> dict[str, Any]:
    root.mkdir(parents=True, exist_ok=True)
    paths = DrillPaths(Path(tempfile.mkdtemp(prefix=f"{drill.name}-", dir=root)))
    began = time.monotonic()
    with paths.log.open("wb") as log:
        process = subprocess.Popen(
            program([sys.executable], SUPERVISE, drill.name, str(paths.folder)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches this process only; it terminates the supervisor below
        )
        try:
            code = process.wait(MAX_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _terminate(process)
    seconds = time.monotonic() - began
    if code is None:
        return outcome.describe_broken(drill, paths, f"it did not finish within {MAX_S:.0f} s", seconds)
    if not (paths.run / "summary.json").is_file():
        return outcome.describe_broken(
            drill, paths, f"its supervisor exited with status {code} and wrote no summary", seconds
        )
    return outcome.judge_drill(drill, paths, seconds)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate the supervisor, which stops its training first."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _find_skip_reason(drill: Drill, why_no_accelerator: str | None) -> str | None:
    missing = [package for package in drill.needs if importlib.util.find_spec(package) is None]
    if missing:
        return f"this Python has no {' and no '.join(missing)}"
    return why_no_accelerator if drill.accelerator else None


def _why_no_accelerator() -> str | None:
    """Return why the simulated accelerator is unavailable, or None. Read torch's source: importing torch takes too long."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    source = Path(torch.origin).parent / "utils" / "backend_registration.py"
    if source.is_file() and "_setup_privateuseone_for_python_backend" in source.read_text():
        return None
    return "this torch does not support devices written in Python (2.13 does)"
