"""A YOLO training that leaks on a machine that kills: with Holdfast's plan, with Ultralytics' own resume, and left alone. See README.md.

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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "bench" / "results"
README = HERE / "README.md"
BEGIN, END = "<!-- figures: written by run.py --write-readme -->", "<!-- end of figures -->"
HOLDFAST = Path(sys.executable).with_name("holdfast")
ROOM = 400
"""Megabytes that may leak before the process is killed."""
EPOCHS_TO_THE_LIMIT = 2.5
MAX_LIVES = 30


@dataclass(frozen=True)
class Row:
    contender: str
    finished: bool
    wall_s: float
    lives: int
    kills: int
    batches: int
    again: int
    """Batches that were made more than once."""
    map50: float
    identical: bool | None
    note: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a data yaml of Ultralytics'")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--imgsz", type=int, default=320)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where Holdfast's result is not that of the bare run"
    )
    parser.add_argument("--write-readme", action="store_true")
    options = parser.parse_args()
    settings = {
        "model": "yolo11n.yaml", "data": str(options.data.resolve()), "epochs": options.epochs, "imgsz": options.imgsz,
        "batch": options.batch, "workers": 0, "device": "cpu", "plots": False, "seed": 0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="holdfast-survival-") as scratch:
        rows, facts = compared(settings, Path(scratch))
    text = json.dumps({"facts": facts, "rows": [asdict(row) for row in rows]}, indent=1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"survival-{time.strftime('%Y-%m-%d_%H-%M-%S')}.json").write_text(text)
    if options.json:
        options.json.write_text(text)
    table = as_table(rows, facts)
    print(table)
    if options.write_readme:
        whole = README.read_text()
        README.write_text(whole[: whole.index(BEGIN) + len(BEGIN)] + f"\n\n{table}\n\n" + whole[whole.index(END) :])
    ours = next(row for row in rows if row.contender.startswith("Holdfast"))
    return 1 if options.check and not (ours.finished and ours.identical) else 0


def compared(settings: dict[str, Any], scratch: Path) -> tuple[list[Row], dict[str, Any]]:
    bare, peak = left_alone(settings, scratch / "bare")
    print(as_line(bare), flush=True)
    per_epoch = bare.batches / settings["epochs"]
    leak = {"mb": ROOM / (EPOCHS_TO_THE_LIMIT * per_epoch), "limit_mb": peak / (1 << 20) + ROOM}
    truth = result_of(scratch / "bare")
    rows = [bare]
    for contender in (with_holdfast, with_own_resume):
        rows.append(contender(settings, leak, truth, scratch / contender.__name__))
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


def left_alone(settings: dict[str, Any], folder: Path) -> tuple[Row, int]:
    """No leak, no kill: what the others should come to."""
    folder.mkdir()
    began = time.monotonic()
    process = subprocess.Popen(command(settings, folder), cwd=folder, env=environment(folder), **QUIET)
    peak = peak_of(process)
    wall = time.monotonic() - began
    done = batches(folder)
    row = Row("left alone: no leak, no kill", process.returncode == 0, wall, 1, 0, done, 0, map50(folder), None)
    return row, peak


def with_holdfast(settings: dict[str, Any], leak: dict[str, float], truth: Any, folder: Path) -> Row:
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
    made = batches(folder)
    again = made - int(truth["batches"])
    note = f"{planned} planned restarts, {kills} kills; goodput {summary['goodput']['ratio']:.0%}"
    note += f"; changed: {', '.join(changes)}" if changes else ""
    found = result_of(folder)
    return Row(
        "Holdfast, a plan with that memory", done.returncode == 0, wall, len(summary["attempts"]), kills, made, again,
        map50(folder), found["hash"] == truth["hash"] and found["table"] == truth["table"], note,
    )  # fmt: skip


def with_own_resume(settings: dict[str, Any], leak: dict[str, float], truth: Any, folder: Path) -> Row:
    """A shell loop: started again with its own resume until it ends well."""
    folder.mkdir()
    began, lives, code = time.monotonic(), 0, -9
    while code != 0 and lives < MAX_LIVES:
        last = next(folder.rglob("last.pt"), None)
        asked = (
            [sys.executable, str(HERE / "yolo.py"), "detect", "train", "resume", f"model={last}"]
            if last
            else command(settings, folder)
        )
        code = subprocess.run(asked, cwd=folder, env=environment(folder, leak=leak), check=False, **QUIET).returncode
        lives += 1
    made = batches(folder)
    found = result_of(folder)
    return Row(
        "Ultralytics' own resume in a shell loop", code == 0, time.monotonic() - began, lives, lives - (code == 0), made,
        made - int(truth["batches"]), map50(folder), found["hash"] == truth["hash"] and found["table"] == truth["table"],
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
    """Every contender counts its batches in the same way."""
    return {**os.environ, **injection.environment(folder / "faults", count={}, **faults)}


# --- what came of it --------------------------------------------------------------------------------------------------


def peak_of(process: subprocess.Popen[bytes]) -> int:
    """Bytes that it held at most."""
    most, over = [0], threading.Event()

    def look() -> None:
        watched = psutil.Process(process.pid)
        while not over.wait(0.1):
            try:
                most[0] = max(most[0], watched.memory_info().rss)
            except psutil.Error:
                return

    thread = threading.Thread(target=look)
    thread.start()
    process.wait()
    over.set()
    thread.join()
    return most[0]


def batches(folder: Path) -> int:
    path = folder / "faults" / "batches"
    return path.stat().st_size if path.exists() else 0


def result_of(folder: Path) -> dict[str, Any]:
    import torch

    last = next(iter(sorted((folder / "runs").rglob("last.pt"))), None)
    if last is None:
        return {"hash": None, "table": None, "batches": batches(folder)}
    saved = torch.load(last, map_location="cpu", weights_only=False)
    digest = hashlib.sha256()
    for name, value in (saved["ema"] or saved["model"]).state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    return {"hash": digest.hexdigest(), "table": rows_of(folder), "batches": batches(folder)}


def rows_of(folder: Path) -> list[dict[str, str]]:
    """results.csv without its clock."""
    table = next(iter(sorted((folder / "runs").rglob("results.csv"))), None)
    if table is None:
        return []
    with table.open() as file:
        rows = [{name.strip(): value.strip() for name, value in row.items()} for row in csv.DictReader(file)]
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def map50(folder: Path) -> float:
    rows = rows_of(folder)
    return float(rows[-1]["metrics/mAP50(B)"]) if rows else float("nan")


def as_line(row: Row) -> str:
    return f"{row.contender}: {row.wall_s:.0f} s, {row.lives} lives, {row.again} batches again, mAP50 {row.map50:.4f}, identical {row.identical} {row.note}"


def as_table(rows: list[Row], facts: dict[str, Any]) -> str:
    head = (
        f"Measured {facts['date']}: each batch leaks {facts['leak_mb_a_batch']} MB, a process over {facts['limit_mb']} MB is killed; "
        f"it needs {facts['peak_mb']} MB; {facts['batches_an_epoch']:.0f} batches an epoch.\n\n"
        "| contender | finished | wall s | lives | killed | batches made again | final mAP50 | weights and results.csv as if left alone |  |\n"
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
