"""The variants: bare, Holdfast, TrainCheck, Lightning. The last two have separate environments."""

from __future__ import annotations

import json
import os
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
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = HERE / "programs"
HOLDFAST_BIN = ROOT / ".venv/bin"
TORCH = "torch==2.13.0"  # without the pin, pip installs a torch with gigabytes of CUDA
VENVS = {
    "traincheck": (ROOT / "bench/.venv-traincheck", ["traincheck==0.2.0", TORCH]),
    "lightning": (ROOT / "bench/.venv-lightning", ["lightning==2.6.6", "psutil", TORCH]),
}
RUN_LIMIT_S = 600


class RunFailed(Exception):
    """A run gave no result. The message contains the last output."""


def ensure_venv(name: str, say: Callable[[str], None]) -> Path:
    """Return the bin folder of an environment. Create the environment on first use."""
    folder, packages = VENVS[name]
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


def environment(config: dict[str, Any], threads: int | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH"}}
    env["BENCH_CONFIG"] = json.dumps(config)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def execute(command: list[str], folder: Path, env: dict[str, str], out: Path) -> dict[str, Any]:
    """Run a command in `folder`. Return the program's own times and the time of the whole process."""
    log = folder / "output.log"
    began = time.perf_counter()
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise RunFailed(str(error)) from None
        try:
            code = process.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not finished after {RUN_LIMIT_S} s") from None
        finally:
            _terminate(process)
    whole = time.perf_counter() - began
    if not out.exists():
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise RunFailed(f"exit {code}, no result: {last[0][:200]}")
    return {**json.loads(out.read_text()), "whole_s": whole, "exit": code}


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Stop all processes of a run. Send SIGTERM first, so that a supervisor can stop its training."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)


def bare(config: dict[str, Any], threads: int | None) -> dict[str, Any]:
    with scratch() as folder:
        out = folder / "result.json"
        env = environment({**config, "out": str(out)}, threads)
        return execute([str(HOLDFAST_BIN / "python"), str(PROGRAMS / "train.py")], folder, env, out)


def holdfast(config: dict[str, Any], threads: int | None) -> dict[str, Any]:
    """Run under Holdfast, as a user would. Also return the steps it counted, to detect a probe that never attached."""
    with scratch() as folder:
        out, run = folder / "result.json", folder / "run"
        command = [str(HOLDFAST_BIN / "holdfast"), "run", "--dir", str(run), "--"]
        command += [str(HOLDFAST_BIN / "python"), str(PROGRAMS / "train.py")]
        result = execute(command, folder, environment({**config, "out": str(out)}, threads), out)
        return {**result, **check_steps(run, config["warmup"] + config["steps"])}


def check_steps(run: Path, steps: int) -> dict[str, Any]:
    """Return whether the summary counts every step of the training, and its findings in this healthy training."""
    try:
        summary = json.loads((run / "summary.json").read_text())
        seen = summary["attempts"][-1]["last_step"]
        alarms = [f["rule"] for f in summary["findings"] if f["severity"] != "note"]
    except (OSError, ValueError, LookupError) as error:
        return {"watched": False, "seen": f"no summary: {error!r}"}
    return {"watched": seen == steps, "seen": seen, "verdict": summary.get("verdict"), "alarms": alarms}


def lightning(callbacks: str) -> Callable[[dict[str, Any], int | None], dict[str, Any]]:
    def run(config: dict[str, Any], threads: int | None) -> dict[str, Any]:
        with scratch() as folder:
            out = folder / "result.json"
            env = environment({**config, "out": str(out), "callbacks": callbacks}, threads)
            python = VENVS["lightning"][0] / "bin/python"
            return execute([str(python), str(PROGRAMS / "lightning_train.py")], folder, env, out)

    return run


TRAINCHECK_MODES = {
    "full": [],
    "selective": ["--sampling-interval", "1", "--warm-up-steps", "1"],
    "sampled": [],  # TrainCheck's default with invariants: the first 10 steps, then every 10th
}


def traincheck(mode: str, invariants: Path) -> Callable[[dict[str, Any], int | None], dict[str, Any]]:
    def run(config: dict[str, Any], threads: int | None) -> dict[str, Any]:
        with scratch() as folder:
            return _collect(mode, invariants, config, threads, folder)

    return run


def _collect(
    mode: str, invariants: Path | None, config: dict[str, Any], threads: int | None, folder: Path
) -> dict[str, Any]:
    for program in ("train.py", "models.py"):  # TrainCheck writes next to the script
        shutil.copy(PROGRAMS / program, folder)
    out, trace = folder / "result.json", folder / "trace"
    command = [str(VENVS["traincheck"][0] / "bin/traincheck-collect"), "-p", str(folder / "train.py")]
    command += ["--models-to-track", "model", "--output-dir", str(trace)]
    if mode != "full":
        command += ["--invariants", str(invariants), *TRAINCHECK_MODES[mode]]
    result = execute(command, folder, environment({**config, "out": str(out)}, threads), out)
    return {**result, "trace_mb": sum(f.stat().st_size for f in trace.rglob("*")) / 1e6}


def infer_invariants(config: dict[str, Any], path: Path) -> Path:
    """Run the first two stages of TrainCheck: trace a good run completely, infer invariants from the trace."""
    with scratch() as folder:
        _collect("full", None, config, 1, folder)
        infer = str(VENVS["traincheck"][0] / "bin/traincheck-infer")
        command = [infer, "-f", str(folder / "trace"), "-o", str(path)]
        subprocess.run(command, cwd=folder, check=True, timeout=RUN_LIMIT_S, capture_output=True)
    return path
