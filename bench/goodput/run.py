"""Goodput of real trainings under repeated SIGKILLs. See README.md."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
from pathlib import Path
from typing import Any

import contenders
import table
from images import SIDE, make_images

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import Bench, RunFailed, add_options, ensure_peer, read_results, run_bench, scratch, write_figures

README = Path(__file__).parent / "README.md"
SEED = 4
"""Seed of the kills of the first run. Each further run of Holdfast uses the next seed."""
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
        write_figures(README, table.as_markdown(read_results(options.write_readme)))
        return 0
    return run_bench(GoodputBench(options), table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short trainings, 3 kills: tries the bench, proves nothing"
    )
    parser.add_argument("--kills", type=int, help="number of kills (default 6; quick 3)")
    parser.add_argument(
        "--pairs", type=int, help=f"number of Holdfast runs, alternating with bare runs (default {PAIRS}; quick 1)"
    )
    parser.add_argument("--program", choices=[*PEERS], help="only this program")
    parser.add_argument("--only", help="only these contenders, comma-separated; bare runs are always included")
    parser.add_argument(
        "--keep-runs", type=Path, metavar="DIR", help="keep Holdfast's run folders here, for inspection"
    )
    add_options(parser, "a limit is not met or was not measured")
    return parser.parse_args()


class GoodputBench(Bench):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__("goodput", options, quick=options.quick, seed=SEED, programs=[])
        self.count = options.kills or (3 if options.quick else 6)
        self.pairs = options.pairs or (1 if options.quick else PAIRS)

    def measure(self) -> None:
        ensure_peer("lightning", self.say)
        contenders.compile_holdfast()
        with scratch() as shared:
            for program in PEERS:
                if self.options.program in {None, program}:
                    self.measure_program(program, self.config(program, shared))

    def config(self, program: str, shared: Path) -> dict[str, Any]:
        config = {**SIZES[program], "settings": str(shared)}
        if self.options.quick:
            config["epochs"] = QUICK_EPOCHS
        if program != "plain loop":
            images = config["batches"] * config["batch"]
            config["data"] = str(make_images(shared / f"images-{config['epochs']}", images, config["validated"]))
        return config

    def measure_program(self, program: str, config: dict[str, Any]) -> None:
        short = contenders.run("bare", program, {**config, "epochs": 2}, [], None)  # also warms the file caches
        needed = config["epochs"] * config["batches"]
        self.say(f"{program}: {config['epochs']} epochs, {needed} batches")
        runs: list[Run] = []
        measured = {"name": program, **config, "needed": needed, "runs": runs}
        for private in ("settings", "data"):
            measured.pop(private, None)
        self.results["programs"].append(measured)
        order = self.order(program)
        for name, seed_offset in order:
            runs.append(self.attempt(name, program, config, kill_batches(needed, self.count, seed_offset)))
            self.keep()
        if program == "plain loop":  # all contenders use the same YOLO script
            measured["same_program"] = self.without_kills(program, config, short, {name for name, _ in order})
        self.keep()

    def order(self, program: str) -> list[tuple[str, int]]:
        """Return the runs in order, each with its seed offset. A run is compared with the nearest bare runs."""
        wanted = self.options.only.split(",") if self.options.only else ["holdfast", *PEERS[program]]
        pairs = self.pairs if "holdfast" in wanted else 0
        order = [("bare", 0)]
        for pair in range(pairs):
            order += [("holdfast", pair), ("bare", 0)]
        peers = [(name, 0) for name in PEERS[program] if name in wanted]
        return [*order, *peers, ("bare", 0)] if peers else order

    def attempt(self, name: str, program: str, config: dict[str, Any], kills: list[int]) -> Run:
        """Run a contender. A failure affects only its own row."""
        kept = kills and self.options.keep_runs and self.folder_for(program, name)
        before = os.getloadavg()[0]
        try:
            run = contenders.run(name, program, config, [] if name == "bare" else kills, kept or None)
        except RunFailed as error:
            run = {"contender": name, "error": str(error)}
        run |= {"load": [before, os.getloadavg()[0]], "places": [] if name == "bare" else kills}
        outcome = run.get("error") or f"{run['wall_s']:.1f} s, {run['batches_made']} batches, weights {run['weights']}"
        self.say(f"{program}, {name}: {outcome}")
        return run

    def folder_for(self, program: str, name: str) -> Path:
        """Return a new folder for the next run of this contender."""
        words = f"{program} {name}".replace(" ", "-")
        names = (self.options.keep_runs / f"{words}-{number}" for number in itertools.count(1))
        return next(path for path in names if not path.exists())

    def without_kills(self, program: str, config: dict[str, Any], short: Run, names: set[str]) -> dict[str, bool]:
        """Return whether each contender's program, without kills, ends with the weights of the bare program."""
        same = {}
        for name in sorted(names & {"holdfast", "torchrun", "lightning"}):
            run = self.attempt(name, program, {**config, "epochs": 2}, [])
            same[name] = run.get("weights") == short["weights"]
        return same


def kill_batches(needed: int, count: int, seed_offset: int) -> list[int]:
    """Draw one batch in each of `count` equal parts of the training. The same offset gives the same batches."""
    generator = random.Random(SEED + seed_offset)
    return [int(needed * (part + generator.random()) / count) + 1 for part in range(count)]


if __name__ == "__main__":
    sys.exit(main())
