"""Fault detection and false alarms: faulty and healthy trainings under Holdfast, compared with TrainCheck. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import running
import table
from cases import FAULTY, HEALTHY, Faulty, Healthy
from running import PYTHON, ROOT, Broken, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

README = Path(__file__).parent / "README.md"
RESULTS = ROOT / "bench/results"
BEGIN, END = "<!-- figures: written by run.py --write-readme -->", "<!-- end of figures -->"


def main() -> int:
    options = arguments()
    if options.write_readme:
        write_readme(merge_results([json.loads(path.read_text()) for path in options.write_readme]))
        return 0
    bench = Bench(options)
    if options.bare:
        bench.show_bare()
        return 0
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
    return 1 if options.check and missed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="REGEX", help="only programs whose name matches")
    parser.add_argument("--kind", choices=("faulty", "healthy"), help="only programs of this kind")
    parser.add_argument(
        "--jobs", type=int, choices=(1, 2), default=1, help="programs that run at the same time (default 1)"
    )
    parser.add_argument("--without", default="", help="leave out, comma-separated: traincheck, holdfast")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders here, one per program")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if recall is below 95%%, there is a false alarm, or a relation took more than 3 steps",
    )
    parser.add_argument("--bare", action="store_true", help="run the programs without Holdfast and show their output")
    parser.add_argument(
        "--write-readme",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="write README.md's tables from results files (TrainCheck's may come from another run) and run nothing",
    )
    return parser.parse_args()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.without = set(filter(None, options.without.split(",")))
        self.faulty = self.select_cases(FAULTY, "faulty")
        self.healthy = self.select_cases(HEALTHY, "healthy")
        self.began = time.monotonic()
        self.lock = threading.Lock()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        part = "-traincheck" if "holdfast" in self.without else ""
        self.paths = [RESULTS / f"detection{part}-{stamp}.json"] + ([options.json] if options.json else [])
        self.results: dict[str, Any] = {"date": stamp[:10], "machine": machine(), "faulty": [], "healthy": []}

    def select_cases(self, cases: Iterable[Any], kind: str) -> list[Any]:
        if self.options.kind not in (None, kind):
            return []
        here = [case for case in cases if getattr(case, "platform", None) in (None, sys.platform)]
        return [case for case in here if not self.options.only or re.search(self.options.only, case.name)]

    def say(self, message: str) -> None:
        print(f"[{time.monotonic() - self.began:6.0f} s] {message}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """Write the results. Called after every program, so that an interrupted bench leaves its results."""
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.results, indent=1))

    def measure(self) -> None:
        if "holdfast" not in self.without:
            self.run_holdfast("faulty", self.faulty)
            self.run_holdfast("healthy", self.healthy)
        with_twin = [case for case in self.faulty if case.twin]
        if with_twin and "traincheck" not in self.without:
            self.run_traincheck(with_twin)

    def run_holdfast(self, kind: str, cases: list[Faulty] | list[Healthy]) -> None:
        """Run programs under Holdfast. Results are in the order of `cases`, regardless of which program finishes first."""
        done: dict[str, Result] = {}

        def run(case: Faulty | Healthy) -> None:
            result = run_and_judge(case, self.options.keep)
            with self.lock:
                done[case.name] = result
                self.results[kind] = [done[case.name] for case in cases if case.name in done]
                self.say(f"{kind} {len(done)}/{len(cases)}  {table.format_line(result, kind)}")
                self.keep()

        with ThreadPoolExecutor(self.options.jobs) as pool:
            try:
                for _ in pool.map(run, cases):
                    pass
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise

    def run_traincheck(self, cases: list[Faulty]) -> None:
        """Run TrainCheck on one program after another: it is slow, and parallel runs would affect its time limits."""
        from traincheck import TrainCheck

        peer = TrainCheck(self.say)
        self.results["traincheck"] = []
        for number, case in enumerate(cases, 1):
            result = peer.run(case)
            self.results["traincheck"].append(result)
            self.say(f"TrainCheck {number}/{len(cases)}  {case.name}: {table.describe_peer(result)}")
            self.keep()

    def show_bare(self) -> None:
        cases = [*self.faulty, *self.healthy]
        with ThreadPoolExecutor(self.options.jobs) as pool:
            for case, text in zip(cases, pool.map(run_bare, cases), strict=True):
                print(f"{case.path.parent.name}/{case.name}: {text}", flush=True)


def run_and_judge(case: Faulty | Healthy, keep: Path | None) -> Result:
    """Run a program under Holdfast and judge the result. A program that the bench cannot run counts against Holdfast."""
    try:
        result = running.under_holdfast(case, keep)
    except (Broken, OSError) as error:
        return {"name": case.name, "error": str(error)}
    if isinstance(case, Faulty):
        return running.judge_faulty(case, result)
    return running.judge_healthy(case, result)


def run_bare(case: Faulty | Healthy) -> str:
    try:
        result = running.run_bare(case)
    except (Broken, OSError) as error:
        return str(error)
    lines = result["output"]
    short = lines if len(lines) <= 6 else [*lines[:3], "...", *lines[-3:]]
    return "\n    ".join([f"exit {result['exit']} after {result['seconds']:.1f} s", *short])


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    command = [str(PYTHON), "-c", "import torch; print(torch.__version__)"]
    return {
        "cpu": names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip(),
        "commit": commit or "no commit",
    }


def merge_results(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of the first file, with missing parts from the other files."""
    results = dict(several[0])
    for other in several[1:]:
        results.update({part: value for part, value in other.items() if not results.get(part)})
    return results


def write_readme(results: dict[str, Any]) -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text(f"{before}{BEGIN}\n\n{table.as_markdown(results)}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
