"""Fault detection and false alarms: faulty and healthy trainings under Holdfast, compared with TrainCheck. See README.md."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import running
import table
from cases import FAULTY, HEALTHY, Faulty, Healthy
from running import Result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import Bench, RunFailed, add_options, read_results, run_bench, write_figures

if TYPE_CHECKING:
    from collections.abc import Iterable

README = Path(__file__).parent / "README.md"


def main() -> int:
    options = arguments()
    if options.write_readme:
        write_figures(README, table.as_markdown(read_results(options.write_readme)))
        return 0
    bench = DetectionBench(options)
    if options.bare:
        bench.show_bare()
        return 0
    return run_bench(bench, table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="REGEX", help="only programs whose name matches")
    parser.add_argument("--kind", choices=("faulty", "healthy"), help="only programs of this kind")
    parser.add_argument(
        "--jobs", type=int, choices=(1, 2), default=1, help="programs that run at the same time (default 1)"
    )
    parser.add_argument("--without", default="", help="leave out, comma-separated: traincheck, holdfast")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders here, one per program")
    parser.add_argument("--bare", action="store_true", help="run the programs without Holdfast and show their output")
    add_options(parser, "recall is below 95%%, there is a false alarm, or a relation took more than 3 steps")
    return parser.parse_args()


class DetectionBench(Bench):
    def __init__(self, options: argparse.Namespace) -> None:
        self.without = set(filter(None, options.without.split(",")))
        part = "-traincheck" if "holdfast" in self.without else ""
        super().__init__(f"detection{part}", options, faulty=[], healthy=[])
        self.faulty = self.select_cases(FAULTY, "faulty")
        self.healthy = self.select_cases(HEALTHY, "healthy")
        self.lock = threading.Lock()

    def select_cases(self, cases: Iterable[Any], kind: str) -> list[Any]:
        if self.options.kind not in (None, kind):
            return []
        here = [case for case in cases if getattr(case, "platform", None) in (None, sys.platform)]
        return [case for case in here if not self.options.only or re.search(self.options.only, case.name)]

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
    except (RunFailed, OSError) as error:
        return {"name": case.name, "error": str(error)}
    if isinstance(case, Faulty):
        return running.judge_faulty(case, result)
    return running.judge_healthy(case, result)


def run_bare(case: Faulty | Healthy) -> str:
    try:
        result = running.run_bare(case)
    except (RunFailed, OSError) as error:
        return str(error)
    lines = result["output"]
    short = lines if len(lines) <= 6 else [*lines[:3], "...", *lines[-3:]]
    return "\n    ".join([f"exit {result['exit']} after {result['seconds']:.1f} s", *short])


if __name__ == "__main__":
    sys.exit(main())
