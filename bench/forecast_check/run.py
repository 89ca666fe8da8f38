"""A forecast for an Ultralytics training compared with the measured values: memory, time of an epoch, total time.

    python bench/forecast_check/run.py --data DATA.yaml [--epochs 3] [--imgsz 320] [--batch 16] [--check]

Pass a copy of the dataset: Ultralytics writes its caches next to the labels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from holdfast.frameworks.ultralytics import data_set
from holdfast.frameworks.ultralytics.cost_estimate import estimate_memory, estimate_times, merge_settings, sum_times
from holdfast.frameworks.ultralytics.forecast_trial import count_images
from holdfast.frameworks.ultralytics.short_run import measure
from holdfast.frameworks.ultralytics.short_run_metrics import compute_metrics
from holdfast.schema import events
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay
from holdfast.supervisor.load_plan import open_plan
from holdfast.supervisor.stage_command import stage_plan, stages_of

MEMORY, TIME = 0.15, 0.20
"""The requirements."""
BUSY = 0.25
"""Processors that other programs may use while wall time still counts."""
SAMPLE_S = 0.1


class MemorySampler(threading.Thread):
    """Samples the memory of all descendants of a process: the sum, and the high-water mark of the largest."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak, self.high_water, self.stopped = 0, 0, False
        self._root = psutil.Process(pid)

    def run(self) -> None:
        while not self.stopped:
            used = 0
            try:
                for process in self._root.children(recursive=True):
                    own, peak = read_memory(process.pid)
                    used += own
                    self.high_water = max(self.high_water, peak)
            except psutil.Error:
                pass
            self.peak = max(self.peak, used)
            time.sleep(SAMPLE_S)


def read_memory(pid: int) -> tuple[int, int]:
    """Return the current and the peak resident bytes; zeros if the process is gone or the system is not Linux."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return tuple(int(values.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def write_plan(args: argparse.Namespace, folder: Path) -> Path:
    settings = {
        "model": args.model,
        "data": str(args.data.absolute()),
        "epochs": args.epochs,
        "imgsz": args.imgsz,
        "batch": args.batch,
        "close_mosaic": args.close_mosaic,
        "workers": args.workers,
        "project": str(folder / "results"),
    }
    lines = ["[settings]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())]
    path = folder / "plan.toml"
    path.write_text("\n".join(["sample_every_s = 0.1", "", *lines, ""]))
    return path


def run_training(path: Path, folder: Path) -> tuple[list[events.AnyEvent], MemorySampler, float]:
    began = time.monotonic()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("holdfast"), "run", "--no-check", "--dir", folder / "run", path],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    sampler = MemorySampler(process.pid)
    sampler.start()
    process.wait()
    duration = time.monotonic() - began
    sampler.stopped = True
    sampler.join()
    return [entry.event for entry in replay(RunFolder(folder / "run"))], sampler, duration


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="yolo11n.yaml")
    for name, default in (("epochs", 3), ("imgsz", 320), ("batch", 16), ("close-mosaic", 1), ("workers", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a requirement is not met")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forecast-check-") as scratch:
        return compare(args, Path(scratch))


def compare(args: argparse.Namespace, folder: Path) -> int:
    path = write_plan(args, folder)
    plan = open_plan(path)
    stage = stages_of(plan)[0]
    settings = merge_settings(plan, stage)
    counted = count_images(settings, {settings["data"]: data_set.read(args.data.absolute(), cwd=folder)})
    print(f"short trial run: {args.imgsz} px, batch {args.batch} ...", flush=True)
    one = measure(stage_plan(plan, stage))
    if one.failed:
        print(f"the trial run failed: {one.failed}")
        return 1
    memory = estimate_memory(one, settings, counted)
    print(
        f"the trial run took {one.seconds:.0f} s; now the full training, {args.epochs} epochs of {counted.train} images ...",
        flush=True,
    )
    recorded, sampler, duration = run_training(path, folder)
    real = compute_metrics(recorded, alike=False)
    started = next((event.at for event in recorded if isinstance(event, events.AttemptStarted)), 0.0)
    ends = [event for event in recorded if isinstance(event, events.AttemptEnded)]
    ended = ends[-1].at if ends else 0.0
    epochs = [event for event in recorded if isinstance(event, events.Epoch)]
    if real is None or len(ends) != 1 or ends[0].code != 0 or len(epochs) < args.epochs:
        print(f"the full training failed: {len(ends)} attempts, {[end.planned or end.code for end in ends]}")
        return 1
    samples = [event for event in recorded if isinstance(event, events.Sample) and event.cpu is not None]
    computed = samples[-1].cpu or 0.0
    wall, processor = (estimate_times(plan, one, [counted], pace)[0] for pace in (one.wall, one.processor))
    rows = [
        ("memory, training", memory.training.expected, float(real.training), MEMORY, "GB"),
        ("memory, validation", memory.validation.expected, float(real.validation), MEMORY, "GB"),
        ("memory, peak", memory.peak.expected, float(max(real.training, real.validation)), MEMORY, "GB"),
        ("  according to the kernel (VmHWM)", memory.peak.expected, float(sampler.high_water), MEMORY, "GB"),
        ("an epoch, wall", wall.epoch.expected, seconds_per_epoch(epochs), TIME, "s"),
        ("total, wall", sum_times([wall]).expected, ended - started, TIME, "s"),
        ("total, processors", sum_times([processor]).expected, computed, TIME, "s"),
    ]
    others = others_load(samples)
    print(
        f"\nother programs kept {others:.1f} of {os.cpu_count()} processors busy; {duration:.0f} s from start to verdict"
    )
    print(f"{'':32s}{'forecast':>10s}{'measured':>10s}{'error':>8s}")
    met = True
    for name, forecast, happened, bound, unit in rows:
        scale = 1e9 if unit == "GB" else 1.0
        off = forecast / happened - 1.0 if happened else float("nan")
        counts = others <= BUSY or "wall" not in name
        good = abs(off) <= bound
        met &= good or not counts
        message = (
            "" if good else " (not counted: other programs were running)" if not counts else f" exceeds {bound:.0%}"
        )
        print(f"{name:32s}{forecast / scale:10.2f}{happened / scale:10.2f}{off:+8.1%}{message}")
    print("all requirements are met" if met else "not all requirements are met")
    return int(args.check and not met)


def seconds_per_epoch(epochs: list[events.Epoch]) -> float:
    """Return the mean time from one epoch end to the next, including validation; a single epoch's own time."""
    if len(epochs) < 2:
        return epochs[0].seconds
    return (epochs[-1].at - epochs[0].at) / (len(epochs) - 1)


def others_load(samples: list[events.Sample]) -> float:
    """Return the mean number of processors that other programs kept busy: the load minus that of the training."""
    seconds = samples[-1].at - samples[0].at
    own = ((samples[-1].cpu or 0.0) - (samples[0].cpu or 0.0)) / seconds if seconds else 0.0
    loads = [sample.load for sample in samples if sample.load is not None]
    return max(0.0, sum(loads) / len(loads) - own) if loads else 0.0


if __name__ == "__main__":
    sys.exit(main())
