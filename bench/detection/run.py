"""What is found and what is left alone: faulty and healthy trainings under Holdfast, TrainCheck beside it. See README.md beside this file."""

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
        write_readme(merged([json.loads(path.read_text()) for path in options.write_readme]))
        return 0
    bench = Bench(options)
    if options.bare:
        bench.show_bare()
        return 0
    try:
        bench.measure()
    except KeyboardInterrupt:
        bench.say("interrupted: what was measured so far is shown and kept")
    bench.keep()
    print(table.as_text(bench.results))
    print(f"\nwritten to {' and '.join(str(path) for path in bench.paths)}")
    held = table.unmet(bench.results)
    for what in held:
        print(f"not met: {what}")
    return 1 if options.check and held else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="REGEX", help="only programs whose name matches")
    parser.add_argument("--kind", choices=("faulty", "healthy"), help="only these")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="programs at a time (default 1)")
    parser.add_argument("--without", default="", help="leave out, comma-separated: traincheck, holdfast")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run folders here, one for each program")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 where recall is below 95%%, anything is a false alarm, or a relation took long",
    )
    parser.add_argument("--bare", action="store_true", help="run the programs alone and show what they print")
    parser.add_argument(
        "--write-readme",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="fill README.md's tables from results files (TrainCheck's may come from another run), run nothing",
    )
    return parser.parse_args()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.without = set(filter(None, options.without.split(",")))
        self.faulty = self.chosen(FAULTY, "faulty")
        self.healthy = self.chosen(HEALTHY, "healthy")
        self.began = time.monotonic()
        self.lock = threading.Lock()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        part = "-traincheck" if "holdfast" in self.without else ""
        self.paths = [RESULTS / f"detection{part}-{stamp}.json"] + ([options.json] if options.json else [])
        self.results: dict[str, Any] = {"date": stamp[:10], "machine": machine(), "faulty": [], "healthy": []}

    def chosen(self, cases: Iterable[Any], kind: str) -> list[Any]:
        if self.options.kind not in (None, kind):
            return []
        here = [case for case in cases if getattr(case, "platform", None) in (None, sys.platform)]
        return [case for case in here if not self.options.only or re.search(self.options.only, case.name)]

    def say(self, what: str) -> None:
        print(f"[{time.monotonic() - self.began:6.0f} s] {what}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """After every program, so that a run that is cut short leaves its results."""
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.results, indent=1))

    def measure(self) -> None:
        if "holdfast" not in self.without:
            self.watch("faulty", self.faulty)
            self.watch("healthy", self.healthy)
        with_twin = [case for case in self.faulty if case.twin]
        if with_twin and "traincheck" not in self.without:
            self.compare(with_twin)

    def watch(self, kind: str, cases: list[Faulty] | list[Healthy]) -> None:
        """Results stand in the order of the manifest, whatever ends first."""
        done: dict[str, Result] = {}

        def one(case: Faulty | Healthy) -> None:
            result = watched(case, self.options.keep)
            with self.lock:
                done[case.name] = result
                self.results[kind] = [done[case.name] for case in cases if case.name in done]
                self.say(f"{kind} {len(done)}/{len(cases)}  {table.line(result, kind)}")
                self.keep()

        with ThreadPoolExecutor(self.options.jobs) as pool:
            try:
                for _ in pool.map(one, cases):
                    pass
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise

    def compare(self, cases: list[Faulty]) -> None:
        """One after the other: it is slow, and its time limits should be met by itself alone."""
        from traincheck import TrainCheck

        peer = TrainCheck(self.say)
        self.results["traincheck"] = []
        for number, case in enumerate(cases, 1):
            result = peer.run(case)
            self.results["traincheck"].append(result)
            self.say(f"TrainCheck {number}/{len(cases)}  {case.name}: {table.peer_in_words(result)}")
            self.keep()

    def show_bare(self) -> None:
        cases = [*self.faulty, *self.healthy]
        with ThreadPoolExecutor(self.options.jobs) as pool:
            for case, shown in zip(cases, pool.map(shown_bare, cases), strict=True):
                print(f"{case.path.parent.name}/{case.name}: {shown}", flush=True)


def watched(case: Faulty | Healthy, keep: Path | None) -> Result:
    """A program that the bench cannot run costs its own row only, and counts against Holdfast."""
    try:
        result = running.under_holdfast(case, keep)
    except (Broken, OSError) as error:
        return {"name": case.name, "error": str(error)}
    if isinstance(case, Faulty):
        return running.judged_faulty(case, result)
    return running.judged_healthy(case, result)


def shown_bare(case: Faulty | Healthy) -> str:
    try:
        result = running.bare(case)
    except (Broken, OSError) as error:
        return str(error)
    said = result["said"]
    short = said if len(said) <= 6 else [*said[:3], "...", *said[-3:]]
    return "\n    ".join([f"exit {result['exit']} after {result['seconds']:.1f} s", *short])


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    ask = [str(PYTHON), "-c", "import torch; print(torch.__version__)"]
    return {
        "cpu": names[0].split(":", 1)[1].strip() if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip(),
        "commit": commit or "no commit",
    }


def merged(several: list[dict[str, Any]]) -> dict[str, Any]:
    """The first file, with the parts that it lacks from the others."""
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
