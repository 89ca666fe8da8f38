"""Overhead of Holdfast on a shared machine: one process alternates between monitored and bare steps. See README.md.

python bench/overhead/turns.py [--quads N] [--cases REGEX] [--json PATH] [--check] [--write-readme]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import variants
from cases import CASES, GUARDED, Case
from stats import Figure, figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import HOLDFAST, PYTHON, describe_machine, keep_results, scratch, write_figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quads", type=int, default=60, help="number of repetitions of on, off, off, on (default 60)")
    parser.add_argument("--cases", default="", help="only programs whose name matches this regular expression")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is not met")
    parser.add_argument("--write-readme", action="store_true", help="write the table to README.md")
    options = parser.parse_args()
    rows = []
    for case in (*CASES, *GUARDED):
        if case.limit is not None and re.search(options.cases, case.name):
            rows.append(measure(case, options.quads))
            print(as_line(rows[-1]), flush=True)
    keep_results("turns", {"machine": describe_machine(), "rows": rows}, options.json)
    if options.write_readme:
        write_readme(rows)
    return 1 if options.check and not all(row["met"] for row in rows) else 0


def measure(case: Case, quads: int) -> dict[str, Any]:
    config = {
        "net": case.net,
        "optimizer": case.optimizer,
        "target_ms": case.target_ms,
        "first_batch": case.first_batch,
        "quads": quads,
        "guard": case.guard,
    }
    with scratch() as folder:
        out = folder / "result.json"
        env = variants.environment({**config, "out": str(out)}, case.threads)
        command = [HOLDFAST, "run", "--dir", str(folder / "run"), "--", PYTHON, str(variants.PROGRAMS / "turns.py")]
        result = variants.run_program(command, folder, env, out)
        seen = variants.check_steps(folder / "run", result["steps"])
    pairs = result["quads"]
    ratio = figure([(q["on"] + q["on again"]) / (q["off"] + q["off again"]) for q in pairs])
    floor = figure([q["off"] / q["off again"] for q in pairs])
    bare = statistics.median(q["off"] for q in pairs)
    extra = statistics.median(500 * (q["on"] + q["on again"] - q["off"] - q["off again"]) for q in pairs)
    return {
        "name": case.name,
        "limit": case.limit,
        "bare_ms": bare,
        "extra_us": extra,
        "ratio": ratio.__dict__,
        "floor": floor.__dict__,
        "met": ratio.median <= (case.limit or 0),
        "seen": seen,
        **{key: result[key] for key in ("batch", "steps_a_block", "steps")},
    }


def cells(row: dict[str, Any]) -> list[str]:
    ratio, floor = Figure(**row["ratio"]), Figure(**row["floor"])
    within = " (within noise)" if ratio.low <= row["limit"] < ratio.high else ""
    return [
        row["name"],
        f"{row['bare_ms']:.2f}",
        f"{row['extra_us']:+.0f}",
        f"{ratio.median:.4f}",
        f"{ratio.low:.4f} .. {ratio.high:.4f}",
        f"{floor.median:.4f}",
        str(ratio.count),
        f"{row['limit']:.2f}",
        ("met" if row["met"] else "not met") + within,
    ]


def as_line(row: dict[str, Any]) -> str:
    return "  ".join(cells(row))


def write_readme(rows: list[dict[str, Any]]) -> None:
    heads = ["program", "bare, ms per step", "+ us per step", "ratio", "95%", "bare : bare", "quads", "limit", ""]
    table = [heads, ["---"] * len(heads), *(cells(row) for row in rows)]
    machine = describe_machine()
    measured = (
        f"{time.strftime('%Y-%m-%d')}, {machine['cpu']}, Python {machine['python']}, torch {machine.get('torch')}."
    )
    lines = [measured, "", *("| " + " | ".join(line) + " |" for line in table)]
    write_figures(Path(__file__).parent / "README.md", "\n".join(lines), name="turns", by="turns.py")


if __name__ == "__main__":
    sys.exit(main())
