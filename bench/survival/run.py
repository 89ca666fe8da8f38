"""A leaking YOLO training under a memory limit: Holdfast, Ultralytics' own resume, and uninterrupted. See README.md.

python bench/survival/run.py --data DATA.yaml [--epochs N] [--json PATH] [--check] [--write-readme]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.simulator import injection

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import keep_results, write_figures

HERE = Path(__file__).resolve().parent
HOLDFAST = Path(sys.executable).with_name("holdfast")
ROOM = 400
"""Megabytes that can leak before the process is killed."""
EPOCHS_TO_THE_LIMIT = 2.5
MAX_STARTS = 30


@dataclass(frozen=True)
class Row:
    contender: str
    finished: bool
    wall_s: float
    lives: int
    kills: int
    batches: int
    again: int
    """Repeated batches."""
    map50: float
    identical: bool | None
    note: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a data yaml of Ultralytics")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--imgsz", type=int, default=320)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if Holdfast's result differs from that of the bare run"
    )
    parser.add_argument("--write-readme", action="store_true")
    options = parser.parse_args()
    settings = {
        "model": "yolo11n.yaml", "data": str(options.data.resolve()), "epochs": options.epochs, "imgsz": options.imgsz,
        "batch": options.batch, "workers": 0, "device": "cpu", "plots": False, "seed": 0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="holdfast-survival-") as scratch:
        rows, facts = compare(settings, Path(scratch))
    keep_results("survival", {"facts": facts, "rows": [asdict(row) for row in rows]}, options.json)
    table = as_table(rows, facts)
    print(table)
    if options.write_readme:
        write_figures(HERE / "README.md", table)
    ours = next(row for row in rows if row.contender.startswith("Holdfast"))
    return 1 if options.check and not (ours.finished and ours.identical) else 0


def compare(settings: dict[str, Any], scratch: Path) -> tuple[list[Row], dict[str, Any]]:
    bare, peak = run_uninterrupted(settings, scratch / "bare")
    print(as_line(bare), flush=True)
    per_epoch = bare.batches / settings["epochs"]
    leak = {"mb": ROOM / (EPOCHS_TO_THE_LIMIT * per_epoch), "limit_mb": peak / (1 << 20) + ROOM}
    expected = read_result(scratch / "bare")
    rows = [bare]
    for contender in (run_holdfast, run_own_resume):
        rows.append(contender(settings, leak, expected, scratch / contender.__name__))
        print(as_line(rows[-1]), flush=True)
    facts = {
        "leak_mb_a_batch": round(leak["mb"], 2),
        "limit_mb": round(leak["limit_mb"]),
        "peak_mb": round(peak / (1 << 20)),
        "batches_an_epoch": per_epoch,
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }
    return rows, facts


# --- the contenders ---------------------------------------------------------------------------------------------------


def run_uninterrupted(settings: dict[str, Any], folder: Path) -> tuple[Row, int]:
    """Run without leak and kill. The other contenders should produce the same result."""
    folder.mkdir()
    began = time.monotonic()
    process = subprocess.Popen(command(settings, folder), cwd=folder, env=environment(folder), **QUIET)
    peak = measure_peak(process)
    wall = time.monotonic() - began
    done = count_batches(folder)
    row = Row("uninterrupted: no leak, no kill", process.returncode == 0, wall, 1, 0, done, 0, read_map50(folder), None)
    return row, peak


def run_holdfast(settings: dict[str, Any], leak: dict[str, float], expected: Any, folder: Path) -> Row:
    folder.mkdir()
    lines = "\n".join(
        f"{name} = {json.dumps(value)}" for name, value in {**settings, "project": str(folder / "runs")}.items()
    )
    budget = int(leak["limit_mb"])
    (folder / "plan.toml").write_text(
        f'name = "cells"\ntrainer = "ultralytics"\npython = {json.dumps(sys.executable)}\n\n[settings]\n{lines}\n\n[budget]\nmemory = "{budget} MiB"\nattempts = 20\n'
    )
    began = time.monotonic()
    done = subprocess.run(
        [HOLDFAST, "run", "--no-check", "--dir", str(folder / "run"), "--json", "plan.toml"],
        cwd=folder, env=environment(folder, leak=leak), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=(folder / "err.txt").open("wb"), check=False,
    )  # fmt: skip
    wall = time.monotonic() - began
    summary = json.loads(done.stdout.splitlines()[-1])
    if "error" in summary:
        raise SystemExit(summary["error"])
    kills = sum(attempt["exit"]["signal"] == "SIGKILL" and not attempt["stopped_by"] for attempt in summary["attempts"])
    planned = sum(attempt["stopped_by"] == "planned restart" for attempt in summary["attempts"])
    changes = [change["setting"] for attempt in summary["attempts"] for change in attempt["changes"]]
    made = count_batches(folder)
    again = made - int(expected["batches"])
    note = f"{planned} planned restarts, {kills} kills; goodput {summary['goodput']['ratio']:.0%}"
    note += f"; changed: {', '.join(changes)}" if changes else ""
    found = read_result(folder)
    return Row(
        "Holdfast, a plan with that memory budget", done.returncode == 0, wall, len(summary["attempts"]), kills, made, again,
        read_map50(folder), found["hash"] == expected["hash"] and found["table"] == expected["table"], note,
    )  # fmt: skip


def run_own_resume(settings: dict[str, Any], leak: dict[str, float], expected: Any, folder: Path) -> Row:
    """Restart with Ultralytics' own resume until it exits with 0, like a shell loop."""
    folder.mkdir()
    began, lives, code = time.monotonic(), 0, -9
    while code != 0 and lives < MAX_STARTS:
        last = next(folder.rglob("last.pt"), None)
        arguments = (
            [sys.executable, str(HERE / "yolo.py"), "detect", "train", "resume", f"model={last}"]
            if last
            else command(settings, folder)
        )
        code = subprocess.run(
            arguments, cwd=folder, env=environment(folder, leak=leak), check=False, **QUIET
        ).returncode
        lives += 1
    made = count_batches(folder)
    found = read_result(folder)
    return Row(
        "Ultralytics' own resume in a shell loop", code == 0, time.monotonic() - began, lives, lives - (code == 0), made,
        made - int(expected["batches"]), read_map50(folder), found["hash"] == expected["hash"] and found["table"] == expected["table"],
    )  # fmt: skip


QUIET: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def command(settings: dict[str, Any], folder: Path) -> list[str]:
    given = {**settings, "project": str(folder / "runs"), "name": "train"}
    return [
        sys.executable,
        str(HERE / "yolo.py"),
        "detect",
        "train",
        *(f"{name}={value}" for name, value in given.items()),
    ]


def environment(folder: Path, **faults: Any) -> dict[str, str]:
    """Return the environment. Every contender counts its batches in the same way."""
    return {**os.environ, **injection.environment(folder / "faults", count={}, **faults)}


# --- results ----------------------------------------------------------------------------------------------------------


def measure_peak(process: subprocess.Popen[bytes]) -> int:
    """Return the peak resident memory in bytes."""
    peak, done_event = [0], threading.Event()

    def sample() -> None:
        watched = psutil.Process(process.pid)
        while not done_event.wait(0.1):
            try:
                peak[0] = max(peak[0], watched.memory_info().rss)
            except psutil.Error:
                return

    thread = threading.Thread(target=sample)
    thread.start()
    process.wait()
    done_event.set()
    thread.join()
    return peak[0]


def count_batches(folder: Path) -> int:
    path = folder / "faults" / "batches"
    return path.stat().st_size if path.exists() else 0


def read_result(folder: Path) -> dict[str, Any]:
    import torch

    last = next(iter(sorted((folder / "runs").rglob("last.pt"))), None)
    if last is None:
        return {"hash": None, "table": None, "batches": count_batches(folder)}
    saved = torch.load(last, map_location="cpu", weights_only=False)
    digest = hashlib.sha256()
    for name, value in (saved["ema"] or saved["model"]).state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    return {"hash": digest.hexdigest(), "table": read_rows(folder), "batches": count_batches(folder)}


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Return results.csv without its time column."""
    table = next(iter(sorted((folder / "runs").rglob("results.csv"))), None)
    if table is None:
        return []
    with table.open() as file:
        rows = [{name.strip(): value.strip() for name, value in row.items()} for row in csv.DictReader(file)]
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def read_map50(folder: Path) -> float:
    rows = read_rows(folder)
    return float(rows[-1]["metrics/mAP50(B)"]) if rows else float("nan")


def as_line(row: Row) -> str:
    return f"{row.contender}: {row.wall_s:.0f} s, {row.lives} attempts, {row.again} repeated batches, mAP50 {row.map50:.4f}, identical {row.identical} {row.note}"


def as_table(rows: list[Row], facts: dict[str, Any]) -> str:
    head = (
        f"Measured {facts['date']}: each batch leaks {facts['leak_mb_a_batch']} MB, a process over {facts['limit_mb']} MB is killed; "
        f"it needs {facts['peak_mb']} MB; {facts['batches_an_epoch']:.0f} batches per epoch.\n\n"
        "| contender | finished | wall s | attempts | killed | repeated batches | final mAP50 | weights and results.csv same as uninterrupted |  |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    answers = {True: "yes", False: "no", None: ""}
    lines = [
        f"| {row.contender} | {answers[row.finished]} | {row.wall_s:.0f} | {row.lives} | {row.kills} | {row.again} | {row.map50:.4f} | {answers[row.identical]} | {row.note} |"
        for row in rows
    ]
    return re.sub(r" +\|", " |", "\n".join([head, *lines]))


if __name__ == "__main__":
    sys.exit(main())
