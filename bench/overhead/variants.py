"""The variants: bare, Holdfast, TrainCheck, Lightning. The last two have separate environments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import HOLDFAST, PEERS, PYTHON, RUN_LIMIT_S, RunFailed, execute, last_line, scratch

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).parent / "programs"


def environment(config: dict[str, Any], threads: int | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH"}}
    env["BENCH_CONFIG"] = json.dumps(config)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def run_program(command: list[str], folder: Path, env: dict[str, str], out: Path) -> dict[str, Any]:
    """Run a command. Return the program's own times and the time of the whole process."""
    code, whole = execute(command, folder, env)
    if not out.exists():
        raise RunFailed(f"exit {code}, no result: {last_line(folder)}")
    return {**json.loads(out.read_text()), "whole_s": whole, "exit": code}


def bare(config: dict[str, Any], threads: int | None) -> dict[str, Any]:
    with scratch() as folder:
        out = folder / "result.json"
        env = environment({**config, "out": str(out)}, threads)
        return run_program([PYTHON, str(PROGRAMS / "train.py")], folder, env, out)


def holdfast(config: dict[str, Any], threads: int | None) -> dict[str, Any]:
    """Run under Holdfast, as a user would. Also return the steps it counted, to detect a probe that never attached."""
    with scratch() as folder:
        out, run = folder / "result.json", folder / "run"
        command = [HOLDFAST, "run", "--dir", str(run), "--"]
        command += [PYTHON, str(PROGRAMS / "train.py")]
        result = run_program(command, folder, environment({**config, "out": str(out)}, threads), out)
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
            python = PEERS["lightning"][0] / "bin/python"
            return run_program([str(python), str(PROGRAMS / "lightning_train.py")], folder, env, out)

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
    command = [str(PEERS["traincheck"][0] / "bin/traincheck-collect"), "-p", str(folder / "train.py")]
    command += ["--models-to-track", "model", "--output-dir", str(trace)]
    if mode != "full":
        command += ["--invariants", str(invariants), *TRAINCHECK_MODES[mode]]
    result = run_program(command, folder, environment({**config, "out": str(out)}, threads), out)
    return {**result, "trace_mb": sum(f.stat().st_size for f in trace.rglob("*")) / 1e6}


def infer_invariants(config: dict[str, Any], path: Path) -> Path:
    """Run the first two stages of TrainCheck: trace a good run completely, infer invariants from the trace."""
    with scratch() as folder:
        _collect("full", None, config, 1, folder)
        infer = str(PEERS["traincheck"][0] / "bin/traincheck-infer")
        command = [infer, "-f", str(folder / "trace"), "-o", str(path)]
        subprocess.run(command, cwd=folder, check=True, timeout=RUN_LIMIT_S, capture_output=True)
    return path
