"""Repeated kills, disk faults and mutated inputs: thousands of cases, and a check of the result of each. See README.md.

python bench/robustness/run.py [--only kills|faults|disk|mutations] [--seed N] [--json PATH] [--check] [--write-readme]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import RESULTS, find_commit, keep_results, write_figures

CONFINED = "HOLDFAST_BENCH_CONFINED"
PARTS = ("kills", "faults", "disk", "mutations")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="run only this part; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--case", type=int, metavar="N", help="repeat this mutated input and print all details")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a guarantee was violated")
    parser.add_argument("--write-readme", action="store_true")
    options = parser.parse_args()
    confine()
    if options.case is not None:
        import mutations

        return 1 if mutations.repeat(options.seed, options.case) else 0
    commit = find_commit()  # the commit that is measured, which may differ from the one at the end
    store = RESULTS / f"robustness-inputs-{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    parts = {part: _run_part(part, options, store) for part in PARTS if not options.only or part in options.only}
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "seed": options.seed,
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
    }
    figures = {name: part["figures"] for name, part in parts.items()}
    keep_results("robustness", {"facts": facts, **figures}, options.json)
    table = _format_table(parts, facts)
    print(table)
    for part in parts.values():
        for line in part["broken"]:
            print(line)
    if options.write_readme:
        write_figures(Path(__file__).parent / "README.md", table)
    return 1 if options.check and any(part["broken"] for part in parts.values()) else 0


def confine() -> None:
    """As root, continue in a new PID namespace, so that no signal of the bench can reach an unrelated process."""
    if os.geteuid() != 0 or CONFINED in os.environ:
        return
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        possible = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        possible = False
    if possible:  # the shell adopts processes that lose their parent, like init
        shell = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv]
        os.execvpe(unshare[0], [*unshare, *shell], {**os.environ, CONFINED: "1"})


def _run_part(name: str, options: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Run one part. Return a dict with `figures`, `rows` for the table, and `broken`, a line per violated guarantee."""

    def notify(message: str) -> None:
        print(f"  {message}", file=sys.stderr, flush=True)

    print(f"{name} ...", file=sys.stderr, flush=True)
    if name == "mutations":
        return _run_mutations(options, store, notify)
    module = __import__(name)
    if name == "kills":
        return module.part(options.kills, options.seed, notify)
    if name == "faults":
        return module.part(options.faults, options.seed, notify)
    return module.part(notify)


def _run_mutations(options: argparse.Namespace, store: Path, notify: Any) -> dict[str, Any]:
    import mutations

    result = mutations.run(options.mutations, options.seed, store=store, notify=notify)
    groups = Counter(one.group for one in result.found)
    example = {one.group: one for one in reversed(result.found)}
    broken = [
        f"{count} x {group} ({example[group].kind}; run.py --only mutations --seed {options.seed} --case {example[group].number})"
        for group, count in groups.most_common()
    ]
    wanted = (
        "traceback",
        "hang",
        "memory",
        "outside",
        "code",
        "stranger",
        "control character",
        "secret",
        "silent",
        "own fault",
    )
    rows = [
        ("mutated inputs", f"{result.cases} of {len(result.by_kind)} kinds, {result.real} of them as real processes"),
        *((f"mutated inputs: {_describe_violation(what)}", str(result.counts.get(what, 0))) for what in wanted),
        ("mutated inputs: peak memory", f"{result.peak_mb} MB"),
        ("mutated inputs: slowest", f"{result.slowest_s:.1f} s"),
        ("mutated inputs: exit statuses", ", ".join(f"{status}: {count}" for status, count in sorted(result.by_status.items()))),
        ("mutated inputs: duration", f"{result.seconds / 60:.0f} min"),
    ]  # fmt: skip
    return {"figures": asdict(result), "rows": rows, "broken": broken}


def _describe_violation(what: str) -> str:
    return {
        "traceback": "tracebacks", "hang": "hangs over 5 s", "memory": "memory over 500 MB", "outside": "files written or removed outside", "code": "code of the input executed",
        "stranger": "unrelated processes signalled", "control character": "control characters printed", "secret": "secrets in files made for sharing",
        "silent": "exit 1 without an error message", "own fault": "internal errors of Holdfast",
    }[what]  # fmt: skip


def _format_table(parts: dict[str, dict[str, Any]], facts: dict[str, Any]) -> str:
    head = f"Measured {facts['date']} at commit {facts['commit']}, seed {facts['seed']}, as {facts['user']}.\n\n| what | figure |\n|---|---|"
    return "\n".join([head, *(f"| {name} | {value} |" for part in parts.values() for name, value in part["rows"])])


if __name__ == "__main__":
    sys.exit(main())
