"""What the benches share: where things are, progress, results on disk, figures in a README, running a command.

A bench is a folder with a `run.py`, which is started as a script: `make bench-NAME`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
PYTHON = str(BIN / "python")
HOLDFAST = str(BIN / "holdfast")
RESULTS = ROOT / "bench/results"
TORCH = "torch==2.13.0"  # without the pin, pip installs a torch with gigabytes of CUDA
PEERS = {
    "traincheck": (ROOT / "bench/.venv-traincheck", ["traincheck==0.2.0", TORCH]),
    "lightning": (ROOT / "bench/.venv-lightning", ["lightning==2.6.6", "psutil", TORCH]),
}
"""Peer -> its own environment, and what is installed there."""
RUN_LIMIT_S = 600
BUSY = 0.7
"""A load above this comes from other programs."""


class RunFailed(Exception):
    """A run gave no result. The message contains the last output."""


class Bench:
    """One measurement: says how far it is, and writes its results after each part, so that an interruption keeps them."""

    def __init__(self, name: str, options: argparse.Namespace, **results: Any) -> None:
        self.options = options
        self.began = time.monotonic()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.paths = [RESULTS / f"{name}-{stamp}.json"] + ([options.json] if options.json else [])
        load = os.getloadavg()[0]
        machine = {**describe_machine(), "load_at_start": load}
        self.results: dict[str, Any] = {"date": stamp[:10], "machine": machine, **results}
        if load > BUSY:
            self.say(f"other programs are running (load {load:.1f}): the times will not be reliable")

    def say(self, message: str) -> None:
        print(f"[{time.monotonic() - self.began:6.0f} s] {message}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.results, indent=1))

    def measure(self) -> None:
        raise NotImplementedError


def run_bench(bench: Bench, table: ModuleType) -> int:
    """Measure, show the table and return the exit status: with `--check`, 1 if a requirement is not met."""
    try:
        bench.measure()
    except KeyboardInterrupt:
        bench.say("interrupted: showing and keeping the results so far")
    bench.keep()
    print(table.as_text(bench.results))
    print(f"\nwritten to {' and '.join(str(path) for path in bench.paths)}")
    missed = table.unmet(bench.results)
    for requirement in missed:
        print(f"not met: {requirement}")
    return 1 if bench.options.check and missed else 0


def add_options(parser: argparse.ArgumentParser, check: str) -> None:
    """Add the options of every bench. `check` says when `--check` fails."""
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if {check}")
    parser.add_argument(
        "--write-readme",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="write README.md's tables from results files and measure nothing; the first file that has a part counts",
    )


def read_results(paths: list[Path]) -> dict[str, Any]:
    """Return the results of the first file, with the parts that are missing there from the other files."""
    results, *others = [json.loads(path.read_text()) for path in paths]
    for other in others:
        results.update({part: value for part, value in other.items() if not results.get(part)})
    return results


def keep_results(name: str, results: dict[str, Any], also: Path | None) -> None:
    """Write the results of a bench that measures everything before it writes."""
    text = json.dumps(results, indent=1, default=str)
    for path in [RESULTS / f"{name}-{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"] + ([also] if also else []):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_figures(readme: Path, text: str, *, name: str = "figures", by: str = "run.py") -> None:
    """Replace the generated part of a README."""
    begin, end = f"<!-- {name}: written by {by} --write-readme -->", f"<!-- end of {name} -->"
    before, _, rest = readme.read_text().partition(begin)
    readme.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


def find_commit() -> str:
    git = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "no commit"


def describe_machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    code = "from importlib.metadata import version as v; print(v('torch'), v('ultralytics'))"
    versions = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False).stdout.split()
    return {
        "cpu": names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **dict(zip(("torch", "ultralytics"), versions, strict=False)),
        "commit": find_commit(),
    }


def ensure_peer(name: str, say: Callable[[str], None]) -> Path:
    """Return the bin folder of a peer's environment. Create the environment on first use."""
    folder, packages = PEERS[name]
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        say(f"setting up {folder.relative_to(ROOT)} (a minute, once)")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *packages], check=True, stderr=subprocess.DEVNULL)
        stamp.write_text(" ".join(packages))
    return folder / "bin"


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def execute(command: list[str], folder: Path, env: dict[str, str], limit_s: float = RUN_LIMIT_S) -> tuple[int, float]:
    """Run a command in a folder, with its output in output.log. Return its exit status and the seconds that it took."""
    began = time.perf_counter()
    with (folder / "output.log").open("wb") as sink:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RunFailed(str(error)) from None
        try:
            return process.wait(limit_s), time.perf_counter() - began
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not finished after {limit_s:.0f} s: {last_line(folder)}") from None
        finally:
            terminate(process)


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Stop all processes of a run. Send SIGTERM first, so that a supervisor can stop its training."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)


def last_line(folder: Path) -> str:
    log = folder / "output.log"
    return (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1][:200]
