"""Costs of Holdfast itself: memory of the supervisor, start, import, and the records of a million steps."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from variants import PROGRAMS, check_steps, environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import BIN, ROOT, RunFailed, scratch

IMPORT = """
import json, sys, time, psutil
before, known, began = psutil.Process().memory_info().rss, set(sys.modules), time.perf_counter()
import holdfast.__main__
took = time.perf_counter() - began
print(json.dumps({"ms": 1e3 * took, "mb": (psutil.Process().memory_info().rss - before) / 1e6,
                  "modules": len(set(sys.modules) - known), "torch": "torch" in sys.modules}))
"""
REPLAY = """
import json, sys, time
from pathlib import Path
from holdfast.storage.journal import replay
began, count = time.perf_counter(), 0
for _ in replay(Path(sys.argv[1])):
    count += 1
print(json.dumps({"s": time.perf_counter() - began, "events": count}))
"""


def help_seconds(times: int = 15) -> dict[str, float]:
    command = [str(BIN / "holdfast"), "--help"]
    took = []
    for _ in range(times):
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False)
        took.append(time.perf_counter() - began)
        if done.returncode:
            raise RunFailed(f"--help exits {done.returncode}: {done.stderr.decode()[-200:].strip()}")
    return {"median_s": statistics.median(took), "best_s": min(took)}


def import_size() -> dict[str, Any]:
    package = ROOT / "src/holdfast"
    size = sum(f.stat().st_size for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    return {**_python(IMPORT), "package_kb": size / 1e3}


def run_supervised(program: str, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a program under Holdfast and measure the supervisor's peak memory until it exits."""
    out, run = folder / "result.json", folder / "run"
    command = [str(BIN / "holdfast"), "run", "--dir", str(run), "--"]
    command += [str(BIN / "python"), str(PROGRAMS / program)]
    began = time.perf_counter()
    with (folder / "output.log").open("wb") as sink:
        env = environment({**config, "out": str(out)}, 1)
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=sink, stderr=subprocess.STDOUT)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _peak_mb(process.pid))
            time.sleep(0.05)
    if not out.exists():
        last = (folder / "output.log").read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise RunFailed(f"exit {process.returncode}, no result: {last[0][:200]}")
    steps = config["steps"] + config.get("warmup", 0)
    return {
        **json.loads(out.read_text()),
        "whole_s": time.perf_counter() - began,
        "supervisor_peak_mb": peak,
        **check_steps(run, steps),
    }


def supervisor_memory(config: dict[str, Any]) -> dict[str, Any]:
    with scratch() as folder:
        return run_supervised("train.py", config, folder)


def million_steps(steps: int, step_ms: float) -> dict[str, Any]:
    with scratch() as folder:
        result = run_supervised("million.py", {"steps": steps, "step_ms": step_ms}, folder)
        run = folder / "run"
        sizes = {str(f.relative_to(run)): f.stat().st_size / 1e6 for f in run.rglob("*") if f.is_file()}
        replays = [_python(REPLAY, str(run)) for _ in range(3)]
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:6])
    return {
        **result,
        "run_folder_mb": sum(sizes.values()),
        "largest_mb": largest,
        "replay_s": statistics.median(r["s"] for r in replays),
        "replayed_events": replays[0]["events"],
    }


def _peak_mb(pid: int) -> float:
    """Return VmHWM, a high-water mark that misses nothing between samples; without it, the current memory."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    try:
        return psutil.Process(pid).memory_info().rss / 1e6
    except psutil.Error:
        return 0.0


def _python(code: str, *arguments: str) -> dict[str, Any]:
    command = [str(BIN / "python"), "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed((done.stderr.strip().splitlines() or ["no output"])[-1][:200])
    return json.loads(done.stdout)
