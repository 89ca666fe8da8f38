"""A storm of SIGKILLs against real trainings, and what is left of the wall time. See README.md beside this file."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import contenders
import table
from contenders import RunFailed
from images import SIDE, make_pictures

README = contenders.HERE / "README.md"
RESULTS = contenders.ROOT / "bench/results"
BEGIN, END = "<!-- figures: written by run.py --write-readme -->", "<!-- end of figures -->"
SEED = 4
"""Of the first storm; each further one of Holdfast's has the next."""
PAIRS = 3
PEERS = {
    "plain loop": ("torchrun", "holdfast --max-lost-work 1", "lightning"),
    "YOLO11n": ("ultralytics' own resume",),
    "YOLO11n, three times as long": (),
}
SIZES = {
    "plain loop": {"epochs": 12, "batches": 256},
    "YOLO11n": {"epochs": 14, "batches": 32, "batch": 8, "imgsz": SIDE, "validated": 16},
    "YOLO11n, three times as long": {"epochs": 42, "batches": 32, "batch": 8, "imgsz": SIDE, "validated": 16},
}
QUICK_EPOCHS = 3
Run = dict[str, Any]


def main() -> int:
    options = arguments()
    if options.write_readme:
        write_readme(json.loads(options.write_readme.read_text()))
        return 0
    bench = Bench(options)
    try:
        bench.measure()
    except KeyboardInterrupt:
        bench.say("interrupted: what was measured so far is shown and kept")
    bench.keep()
    print(table.as_text(bench.results))
    print(f"\nwritten to {' and '.join(str(path) for path in bench.paths)}")
    return 1 if options.check and table.unmet(bench.results) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short trainings, 3 kills: tries the bench, proves nothing"
    )
    parser.add_argument("--kills", type=int, help="how many (default 6; quick 3)")
    parser.add_argument(
        "--pairs", type=int, help=f"how many runs of Holdfast, in turns with bare ones (default {PAIRS}; quick 1)"
    )
    parser.add_argument("--program", choices=[*PEERS], help="only this one")
    parser.add_argument("--only", help="only these contenders, comma-separated; bare runs always")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here too")
    parser.add_argument("--keep-runs", type=Path, metavar="DIR", help="leave Holdfast's run folders here, to look into")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is not met or was not measured")
    parser.add_argument(
        "--write-readme",
        type=Path,
        metavar="RESULTS",
        help="fill README.md's table from a results file, measure nothing",
    )
    return parser.parse_args()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.count = options.kills or (3 if options.quick else 6)
        self.pairs = options.pairs or (1 if options.quick else PAIRS)
        self.began = time.monotonic()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.paths = [RESULTS / f"goodput-{stamp}.json"] + ([options.json] if options.json else [])
        self.results: dict[str, Any] = {
            "date": stamp[:10],
            "quick": options.quick,
            "machine": {**machine(), "load_at_start": os.getloadavg()[0]},
            "seed": SEED,
            "programs": [],
        }
        if os.getloadavg()[0] > 0.7:
            self.say(f"something else runs here (load {os.getloadavg()[0]:.1f}): figures taken now are worth less")

    def say(self, what: str) -> None:
        print(f"[{time.monotonic() - self.began:6.0f} s] {what}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """After every run, so that a bench that is cut short leaves its figures."""
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.results, indent=1))

    def measure(self) -> None:
        contenders.ensure_lightning()
        contenders.compile_holdfast()
        with contenders.scratch() as shared:
            for program in PEERS:
                if self.options.program in {None, program}:
                    self.measure_program(program, self.config(program, shared))

    def config(self, program: str, shared: Path) -> dict[str, Any]:
        config = {**SIZES[program], "settings": str(shared)}
        if self.options.quick:
            config["epochs"] = QUICK_EPOCHS
        if program != "plain loop":
            images = config["batches"] * config["batch"]
            config["data"] = str(make_pictures(shared / f"images-{config['epochs']}", images, config["validated"]))
        return config

    def measure_program(self, program: str, config: dict[str, Any]) -> None:
        short = contenders.run("bare", program, {**config, "epochs": 2}, [], None)  # it warms the caches of files too
        needed = config["epochs"] * config["batches"]
        self.say(f"{program}: {config['epochs']} epochs, {needed} batches")
        runs: list[Run] = []
        measured = {"name": program, **config, "needed": needed, "runs": runs}
        for private in ("settings", "data"):
            measured.pop(private, None)
        self.results["programs"].append(measured)
        order = self.order(program)
        for name, storm in order:
            runs.append(self.attempt(name, program, config, places(needed, self.count, storm)))
            self.keep()
        if program == "plain loop":  # of YOLO's there is one script for all
            measured["same_program"] = self.without_kills(program, config, short, {name for name, _ in order})
        self.keep()

    def order(self, program: str) -> list[tuple[str, int]]:
        """Who runs when, and through which storm. Each is held against the bare runs nearest before and after it."""
        wanted = self.options.only.split(",") if self.options.only else ["holdfast", *PEERS[program]]
        pairs = self.pairs if "holdfast" in wanted else 0
        order = [("bare", 0)]
        for pair in range(pairs):
            order += [("holdfast", pair), ("bare", 0)]
        peers = [(name, 0) for name in PEERS[program] if name in wanted]
        return [*order, *peers, ("bare", 0)] if peers else order

    def attempt(self, name: str, program: str, config: dict[str, Any], kills: list[int]) -> Run:
        """A contender that fails costs its own row only."""
        kept = kills and self.options.keep_runs and self.folder_for(program, name)
        before = os.getloadavg()[0]
        try:
            run = contenders.run(name, program, config, [] if name == "bare" else kills, kept or None)
        except RunFailed as error:
            run = {"contender": name, "error": str(error)}
        run |= {"load": [before, os.getloadavg()[0]], "places": [] if name == "bare" else kills}
        said = run.get("error") or f"{run['wall_s']:.1f} s, {run['batches_made']} batches, weights {run['weights']}"
        self.say(f"{program}, {name}: {said}")
        return run

    def folder_for(self, program: str, name: str) -> Path:
        """Where the next run folder of this contender's is kept."""
        words = f"{program} {name}".replace(" ", "-")
        names = (self.options.keep_runs / f"{words}-{number}" for number in itertools.count(1))
        return next(path for path in names if not path.exists())

    def without_kills(self, program: str, config: dict[str, Any], short: Run, names: set[str]) -> dict[str, bool]:
        """Whether a contender's own version of the program, left alone, ends with the bare one's weights: else bits could never be compared."""
        same = {}
        for name in sorted(names & {"holdfast", "torchrun", "lightning"}):
            run = self.attempt(name, program, {**config, "epochs": 2}, [])
            same[name] = run.get("weights") == short["weights"]
        return same


def places(needed: int, count: int, storm: int) -> list[int]:
    """One in each of so many equal parts of the training, at a random batch of it: the same for every contender in the same storm."""
    chosen = random.Random(SEED + storm)
    return [int(needed * (part + chosen.random()) / count) + 1 for part in range(count)]


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model n")]
        cpu = names[0] if names else cpu
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=contenders.ROOT, capture_output=True, text=True, check=False).stdout.strip()
    ask = "import torch, ultralytics; print(torch.__version__, ultralytics.__version__)"
    said = subprocess.run([contenders.PYTHON, "-c", ask], capture_output=True, text=True, check=False).stdout.split()
    versions = {"torch": said[0], "ultralytics": said[1]} if len(said) == 2 else {}
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "commit": commit, **versions}


def write_readme(results: dict[str, Any]) -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text(f"{before}{BEGIN}\n\n{table.as_markdown(results)}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
