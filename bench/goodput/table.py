"""Tables of the results: the time of each contender compared with the bare runs before and after it."""

from __future__ import annotations

import statistics
from typing import Any

LIMIT = 1.10
HOLDFAST = "holdfast"
SUM_TOLERANCE_S = 0.05
"""Ten categories, each rounded to a millisecond."""
LABELS = {
    "bare": "bare, never killed",
    "holdfast": "Holdfast",
    "holdfast --max-lost-work 1": "Holdfast --max-lost-work 1",
    "torchrun": "torchrun --max-restarts, a checkpoint each epoch",
    "lightning": "Lightning's ModelCheckpoint each epoch, shell loop",
    "ultralytics' own resume": "Ultralytics' own resume, shell loop",
}
COLUMNS = (
    *("program", "contender", "kills", "wall s", "uninterrupted s", "start s", "restart s", "repeated batches"),
    *("goodput", "ratio", "bit-identical"),
)
JUDGEMENT_COLUMNS = (
    "program",
    "runs of Holdfast",
    "median ratio",
    "lowest",
    "highest",
    "limit",
    "all bit-identical",
    "",
)
BUCKETS = (
    *("start_up", "data_wait", "training", "evaluation", "saving"),
    *("snapshot_stall", "lost_work", "restart", "waiting", "other"),
)


def make_rows(program: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per run. `ratio` is wall / (uninterrupted + kills x start), from the nearest bare runs."""
    runs = program["runs"]
    rows = []
    for place, run in enumerate(runs):
        row = {"program": program["name"], "contender": run["contender"], "label": LABELS[run["contender"]]}
        row["notes"] = []
        rows.append(row)
        bare = _find_bare_runs(runs, place)
        if "error" in run or not bare:
            row["notes"].append(f"no result: {run.get('error', 'no bare run to compare it with')}")
            continue
        uninterrupted = sum(one["wall_s"] for one in bare) / len(bare)
        start = sum(bare_start(one) for one in bare) / len(bare)
        row |= {
            "kills": run["kills"],
            "wall_s": run["wall_s"],
            "uninterrupted_s": uninterrupted,
            "start_s": start,
            "restart_s": sum(run["restarts_s"]) / len(run["restarts_s"]) if run["restarts_s"] else None,
            "again": run["batches_made"] - program["needed"],
            "goodput": uninterrupted / run["wall_s"],
            "ratio": run["wall_s"] / (uninterrupted + run["kills"] * start),
            "same": run["weights"] == bare[0]["weights"],
            "all_kills": run["kills"] == len(run["places"]),
            "exit": run["exit"],
            "judged_itself": "verdict" in run.get("holdfast", {}),
        }
        _add_notes(row, run, program)
    return rows


def judge_program(program: dict[str, Any]) -> dict[str, Any] | None:
    """Compare the median of Holdfast's runs with the limit, or return None without runs.

    A single run with another result than the bare run fails the limit.
    """
    rows = [row for row in make_rows(program) if row["contender"] == HOLDFAST]
    if not rows:
        return None
    ratios = sorted(row["ratio"] for row in rows if "ratio" in row)
    same = all(row.get("same") and row["all_kills"] and row["judged_itself"] and not row["exit"] for row in rows)
    median = statistics.median(ratios) if ratios else None
    met = median is not None and same and median <= LIMIT
    return {"program": program["name"], "runs": len(rows), "ratios": ratios, "median": median, "same": same, "met": met}


def bare_start(run: dict[str, Any]) -> float:
    """Return the time from process start to the first step, including the extra time of that step (imports)."""
    return run["start_s"] - run["median_step_s"]


def _find_bare_runs(runs: list[dict[str, Any]], place: int) -> list[dict[str, Any]]:
    """Return the nearest bare run before and after a run. A bare run is compared with all other bare runs."""
    if runs[place]["contender"] == "bare":
        return [
            run for other, run in enumerate(runs) if other != place and run["contender"] == "bare" and "wall_s" in run
        ]
    before = [run for run in runs[:place] if run["contender"] == "bare" and "wall_s" in run]
    after = [run for run in runs[place:] if run["contender"] == "bare" and "wall_s" in run]
    return before[-1:] + after[:1]


def _add_notes(row: dict[str, Any], run: dict[str, Any], program: dict[str, Any]) -> None:
    if not row["all_kills"]:
        row["notes"].append(f"{run['kills']} of {len(run['places'])} kills fired")
    if run["exit"]:
        row["notes"].append(f"exit status {run['exit']}")
    if program.get("same_program", {}).get(run["contender"]) is False:
        row["notes"].append("its program differs from the bare program even without kills")
    if "holdfast" in run:
        row["notes"] += _describe_holdfast(run["holdfast"], run)
    if run["places"]:
        row["notes"].append(f"killed after batches {', '.join(map(str, run['places']))}")


def _describe_holdfast(summary: dict[str, Any], run: dict[str, Any]) -> list[str]:
    if "error" in summary:
        return [summary["error"]]
    notes = []
    goodput = summary["goodput"]
    difference = sum(goodput["buckets"].values()) - goodput["wall_s"]
    if abs(difference) > SUM_TOLERANCE_S:
        notes.append(f"its categories differ from its own wall time by {difference:+.2f} s")
    if summary["inexact"]:
        notes.append(f"{len(summary['inexact'])} resumes marked as inexact")
    if summary["alarms"]:
        notes.append(f"findings: {', '.join(summary['alarms'])}")
    outside = run["wall_s"] - goodput["wall_s"]
    notes.append(
        f"verdict {summary['verdict']}; its time accounting covers {goodput['wall_s']:.1f} s, {outside:.1f} s are its own start and exit"
    )
    return notes


def unmet(results: dict[str, Any]) -> list[str]:
    """Return limits that are not met or were not measured."""
    judged = [judgement for program in results["programs"] if (judgement := judge_program(program)) is not None]
    missed = [f"{judgement['program']}: {_figure(judgement['median'])}" for judgement in judged if not judgement["met"]]
    return missed if judged else ["nothing was measured"]


def _figure(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _cells(row: dict[str, Any]) -> list[str]:
    if "wall_s" not in row:
        return [row["program"], row["label"], *["-"] * (len(COLUMNS) - 2)]
    bare = row["contender"] == "bare"
    return [
        row["program"],
        row["label"],
        str(row["kills"]),
        f"{row['wall_s']:.1f}",
        f"{row['uninterrupted_s']:.1f}",
        f"{row['start_s']:.2f}",
        "" if row["restart_s"] is None else f"{row['restart_s']:.2f}",
        "" if bare else str(row["again"]),
        f"{row['goodput']:.3f}",
        f"{row['ratio']:.3f}",
        "yes" if row["same"] else "no",
    ]


def _judgement_cells(judgement: dict[str, Any]) -> list[str]:
    ends = [_figure(ratio) for ratio in (judgement["ratios"][:1] + judgement["ratios"][-1:])] or ["-", "-"]
    same, met = ("yes" if judgement["same"] else "no"), ("met" if judgement["met"] else "NOT MET")
    return [
        judgement["program"],
        str(judgement["runs"]),
        _figure(judgement["median"]),
        *ends,
        f"{LIMIT:.2f}",
        same,
        met,
    ]


def _time_accounting(results: dict[str, Any]) -> list[list[str]]:
    lines = []
    for program in results["programs"]:
        for run in program["runs"]:
            summary = run.get("holdfast", {})
            if "goodput" in summary:
                goodput = summary["goodput"]
                cells = [f"{goodput['buckets'].get(name, 0.0):.2f}" for name in BUCKETS]
                total = f"{sum(goodput['buckets'].values()):.2f}"
                name = f"{program['name']}, {LABELS[run['contender']]}"
                lines.append([name, *cells, total, f"{goodput['wall_s']:.2f}", f"{goodput['ratio']:.3f}"])
    return lines


def _tables(results: dict[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    judged = [judgement for program in results["programs"] if (judgement := judge_program(program)) is not None]
    rows = [_cells(row) for program in results["programs"] for row in make_rows(program)]
    names = ("Holdfast's time accounting, s", *(name.replace("_", " ") for name in BUCKETS), "sum", "wall", "useful")
    return [
        (JUDGEMENT_COLUMNS, [_judgement_cells(judgement) for judgement in judged]),
        (COLUMNS, rows),
        (names, _time_accounting(results)),
    ]


def _format_notes(results: dict[str, Any]) -> list[str]:
    notes = []
    for program in results["programs"]:
        epoch = f"{program['epochs']} epochs of {program['batches']} batches"
        notes.append(f"{program['name']}: {epoch}")
        notes += [f"{row['program']}, {row['label']}: {note}" for row in make_rows(program) for note in row["notes"]]
    return notes


def _header(results: dict[str, Any]) -> str:
    machine = results["machine"]
    made = "quick run, only to try the bench" if results["quick"] else "full run"
    loads = [load for program in results["programs"] for run in program["runs"] for load in run["load"]]
    load = f"load {min(loads):.1f} to {max(loads):.1f} (1.0 is the training itself)" if loads else "nothing measured"
    return (
        f"{made}, {results['date']}, {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, torch "
        f"{machine.get('torch')}, ultralytics {machine.get('ultralytics')}, Holdfast at {machine['commit']}, {load}"
    )


def as_text(results: dict[str, Any]) -> str:
    lines = [_header(results), ""]
    for columns, rows in _tables(results):
        if rows:
            widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in [columns, *rows]
            ]
            lines.append("")
    lines += _format_notes(results)
    missed = unmet(results)
    lines.append("limits: " + ("; ".join(missed) or "met"))
    return "\n".join(lines)


def as_markdown(results: dict[str, Any]) -> str:
    lines = [f"Measured: {_header(results)}.", ""]
    for columns, rows in _tables(results):
        if rows:
            lines.append("| " + " | ".join(columns) + " |")
            lines.append("|" + "---|" * len(columns))
            lines += ["| " + " | ".join(row) + " |" for row in rows]
            lines.append("")
    lines += [f"- {note}" for note in _format_notes(results)]
    return "\n".join(lines).rstrip()
