"""Overhead of Holdfast, TrainCheck and Lightning compared with the bare program, in one run. See README.md."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import figures
import table
import variants
from cases import CASES, WARMUP, Case, Sized, calibrate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import RESULTS, Bench, RunFailed, add_options, ensure_peer, read_results, run_bench, write_figures

if TYPE_CHECKING:
    from collections.abc import Callable

README = Path(__file__).parent / "README.md"
Run = dict[str, Any]


def main() -> int:
    options = arguments()
    if options.write_readme:
        write_figures(README, table.as_markdown(read_results(options.write_readme)))
        return 0
    return run_bench(OverheadBench(options), table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="3 short pairs and 100,000 steps: tries the bench, proves nothing"
    )
    parser.add_argument("--pairs", type=int, help="pairs per program (default 15)")
    parser.add_argument(
        "--loop-seconds",
        type=float,
        default=4.0,
        help="duration of a measured loop; one-time costs weigh more in short loops",
    )
    parser.add_argument("--cases", help="only programs whose name matches this regular expression")
    parser.add_argument(
        "--without", default="", help="leave out, comma-separated: holdfast, lightning, traincheck, figures"
    )
    add_options(parser, "a limit is not met or could not be judged")
    return parser.parse_args()


class OverheadBench(Bench):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__("overhead", options, quick=options.quick, cases=[], figures={})
        self.without = set(filter(None, options.without.split(",")))
        self.pairs = options.pairs or (3 if options.quick else 15)
        self.loop_seconds = 0.6 if options.quick else options.loop_seconds
        self.invariants: Path | None = None

    def measure(self) -> None:
        for peer in ("lightning", "traincheck"):
            if peer not in self.without:
                ensure_peer(peer, self.say)
        chosen = [case for case in CASES if not self.options.cases or re.search(self.options.cases, case.name)]
        sized = [self.size(case) for case in chosen]
        if "traincheck" not in self.without and any(case.peers for case in chosen):
            self.infer()
        for number, size in enumerate(sized, 1):
            self.measure_case(size, f"program {number}/{len(sized)}, {size.case.name}")
        if not {"holdfast", "figures"} & self.without:
            self.measure_figures()

    def size(self, case: Case) -> Sized:
        sized = calibrate(case, lambda size, steps: variants.bare(size.config(steps), case.threads)["median_step_ms"])
        self.say(f"calibrated {case.name}: batch {sized.batch}, {sized.measured_ms:.2f} ms a step")
        return sized

    def infer(self) -> None:
        """Infer invariants once, from the 10 ms CNN.

        Inference on the deep network did not finish within 400 s, and TrainCheck's invariants are meant to be transferable.
        """
        self.say("TrainCheck traces a reference run and infers its invariants (about a minute)")
        RESULTS.mkdir(parents=True, exist_ok=True)
        kept = RESULTS / "traincheck-invariants.json"
        reference = Sized(next(case for case in CASES if case.net == "cnn" and case.peers), 50, 0.0)
        try:
            self.invariants = variants.infer_invariants(reference.config(10), kept)
        except (RunFailed, subprocess.SubprocessError) as error:
            self.say(f"TrainCheck's inference failed, only its full mode is measured: {error}")

    def measure_case(self, sized: Sized, title: str) -> None:
        """Run every variant once per round, in reverse order in every second round. Holdfast runs between two bare runs."""
        case = sized.case
        rounds: list[dict[str, Run]] = []
        self.results["cases"].append({**sized.as_json(), "rounds": rounds})
        for number in range(self.pairs):
            order = self.order(sized, with_traincheck=number in self.traincheck_rounds(case))
            runs: dict[str, Run] = {}
            rounds.append(runs)
            for name, steps, warmup, run in order if number % 2 == 0 else reversed(order):
                runs[name] = try_run(run, sized.config(steps, warmup), case.threads)
            compare_weights(runs)
            shown = ", ".join(f"{name} {run.get('step_ms', float('nan')):.2f}" for name, run in runs.items())
            self.say(f"{title}, round {number + 1}/{self.pairs}, ms a step: {shown}")
            self.keep()

    def order(self, sized: Sized, *, with_traincheck: bool) -> list[tuple[str, int, int, Callable[..., Run]]]:
        steps = sized.case.steps(self.loop_seconds)
        order = [("bare", steps, WARMUP, variants.bare), ("bare again", steps, WARMUP, variants.bare)]
        if "holdfast" not in self.without:
            order.insert(1, ("holdfast", steps, WARMUP, variants.holdfast))
        if sized.case.peers and "lightning" not in self.without:
            order.append(("lightning", steps, WARMUP, variants.lightning("none")))
            order.append(("lightning monitored", steps, WARMUP, variants.lightning("monitoring")))
        if with_traincheck:
            # With full instrumentation, the deep network takes five seconds per step.
            few = 3 if sized.case.net == "deep" else 20
            order.append(("traincheck full", few, 3, variants.traincheck("full", Path())))
            if self.invariants:
                order.append(("traincheck selective", few, 3, variants.traincheck("selective", self.invariants)))
                order.append(("traincheck sampled", 40, WARMUP, variants.traincheck("sampled", self.invariants)))
        return order

    def traincheck_rounds(self, case: Case) -> set[int]:
        """Return three rounds for TrainCheck: if a step takes many times as long, more pairs add no information."""
        if not case.peers or "traincheck" in self.without:
            return set()
        return {0} if self.options.quick else {0, self.pairs // 2, self.pairs - 1}

    def measure_figures(self) -> None:
        steps = 100_000 if self.options.quick else 1_000_000
        ten_ms = Sized(next(case for case in CASES if case.net == "cnn"), 50, 10.0)
        for name, measured in {
            "help": figures.help_seconds,
            "import": figures.import_size,
            "supervisor": lambda: figures.supervisor_memory(ten_ms.config(100 if self.options.quick else 2000)),
            "million": lambda: figures.million_steps(steps, 0),
            "million slow": lambda: figures.million_steps(steps, 100),
        }.items():
            self.say(f"Holdfast itself: {name}" + (f" ({steps} steps)" if "million" in name else ""))
            try:
                self.results["figures"][name] = measured()
            except (RunFailed, OSError, KeyError) as error:
                self.results["figures"][name] = {"error": f"{error}"}
            self.keep()


def try_run(run: Callable[..., Run], config: dict[str, Any], threads: int | None) -> Run:
    """Run a variant. A failure affects only its own row."""
    try:
        return run(config, threads)
    except RunFailed as error:
        return {"error": str(error)}


def compare_weights(runs: dict[str, Run]) -> None:
    """Compare final weights: with the same seed and number of steps, monitoring must not change a bit."""
    bare = runs["bare"]
    for run in runs.values():
        if "weights" in run and "weights" in bare and run["steps"] == bare["steps"]:
            run["same_weights"] = run["weights"] == bare["weights"]


if __name__ == "__main__":
    sys.exit(main())
