"""Tables of the figures for the terminal and for README.md. The only input is the results file of run.py."""

from __future__ import annotations

from typing import Any

from stats import figure

LABELS = {
    "bare again": "bare : bare (the noise floor)",
    "holdfast": "Holdfast : bare",
    "lightning": "Lightning's default Trainer : bare",
    "lightning monitored": "Lightning with monitoring callbacks : bare",
    "lightning callbacks": "... its callbacks alone (against its Trainer)",
    "traincheck sampled": "TrainCheck, its invariants, every 10th step : bare",
    "traincheck selective": "TrainCheck, its invariants, every step : bare",
    "traincheck full": "TrainCheck, full : bare",
}
COLUMNS = (
    "program",
    "variant",
    "ms per step",
    "loop ratio",
    "interval",
    "pairs",
    "whole ratio",
    "whole +s",
    "limit",
    "",
)
FIGURES = (
    ("supervisor's peak memory, 10 ms program", "supervisor", "supervisor_peak_mb", "MB", 60),
    ("supervisor's peak memory, a million steps of 100 ms", "million slow", "supervisor_peak_mb", "MB", 60),
    ("holdfast --help, median of 15", "help", "median_s", "s", 0.3),
    ("holdfast --help, best of 15", "help", "best_s", "s", None),
    ("import holdfast.__main__", "import", "ms", "ms", None),
    ("import holdfast.__main__, resident", "import", "mb", "MB", None),
    ("import holdfast.__main__, modules", "import", "modules", "", None),
    ("the package's own files", "import", "package_kb", "kB", None),
    ("a million steps at full speed: run folder", "million", "run_folder_mb", "MB", 64),
    ("a million steps at full speed: replay", "million", "replay_s", "s", 10),
    ("a million steps at full speed: the training itself", "million", "loop_s", "s", None),
    ("a million steps of 100 ms: run folder", "million slow", "run_folder_mb", "MB", 64),
    ("a million steps of 100 ms: replay", "million slow", "replay_s", "s", 10),
    ("a million steps of 100 ms: replayed events", "million slow", "replayed_events", "", None),
)


def pairs(rounds: list[dict[str, Any]], variant: str, key: str) -> list[tuple[float, float]]:
    """Return (variant, reference) of each round that has both. The reference of most variants is the mean of two bare runs."""
    found = []
    for runs in rounds:
        over, under = variant, ["bare", "bare again"]
        if variant == "bare again":
            under = ["bare"]
        elif variant == "lightning callbacks":
            over, under = "lightning monitored", ["lightning"]
        if all(key in runs.get(name, {}) for name in [over, *under]):
            found.append((runs[over][key], sum(runs[name][key] for name in under) / len(under)))
    return found


def case_rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per variant. The row of a variant without a result contains the reason."""
    rows = []
    for variant, label in LABELS.items():
        tried = [runs[variant] for runs in case["rounds"] if variant in runs]
        loops = pairs(case["rounds"], variant, "step_ms")
        if not loops and not tried:
            continue
        row: dict[str, Any] = {"program": case["name"], "variant": variant, "label": label, "limit": None, "met": None}
        row["notes"] = _notes(variant, tried)
        if loops:
            row["step_ms"] = figure([a for a, _ in loops]).median
            row["loop"] = figure([a / b for a, b in loops])
            row["median_step_ratio"] = figure(
                [a / b for a, b in pairs(case["rounds"], variant, "median_step_ms")]
            ).median
            if "traincheck" not in variant:  # it trains fewer steps, so its whole time is not comparable
                whole = pairs(case["rounds"], variant, "whole_s")
                row["whole"] = figure([a / b for a, b in whole])
                row["whole_more_s"] = figure([a - b for a, b in whole]).median
        if variant == "holdfast":
            row["limit"] = case["limit"]
            if case["limit"]:
                row["met"] = _judge(row, rows, case["limit"])
        rows.append(row)
    return rows


def _judge(row: dict[str, Any], earlier: list[dict[str, Any]], limit: float) -> bool | str:
    """Return whether the limit is met, or why it cannot be judged: noise above the limit allows no conclusion."""
    if "loop" not in row:
        return False
    floor = next((other["loop"] for other in earlier if other["variant"] == "bare again" and "loop" in other), None)
    if floor is None or row["loop"].confidence < 0.95:
        return "not judged: too few pairs"
    if max(floor.median, 1 / floor.median) > limit:
        return "not judged: bare differs from bare by as much"
    return row["loop"].median <= limit


def _notes(variant: str, tried: list[dict[str, Any]]) -> list[str]:
    notes = []
    errors = [run["error"] for run in tried if "error" in run]
    if errors:
        notes.append(f"{len(errors)} of {len(tried)} runs gave no result: {errors[-1]}")
    good = [run for run in tried if "error" not in run]
    if variant == "holdfast" and good:
        unseen = [run for run in good if not run.get("watched")]
        if unseen:
            notes.append(f"did not see every step in {len(unseen)} of {len(good)} runs ({unseen[0].get('seen')})")
        alarms = sorted({rule for run in good for rule in run.get("alarms", [])})
        if alarms:
            notes.append(f"false alarms: {', '.join(alarms)}")
    if any(run.get("same_weights") is False for run in good):
        notes.append("final weights differ from the bare run's")
    return notes


def figure_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for label, group, key, unit, limit in FIGURES:
        values = results["figures"].get(group)
        if values is None:
            continue
        row = {"label": label, "unit": unit, "limit": limit, "met": None, "notes": []}
        if "error" in values:
            row["notes"] = [values["error"]]
            row["met"] = False if limit else None
        else:
            row["value"] = values[key]
            row["met"] = values[key] <= limit if limit else None
            if "million" in group and values["steps"] < 1_000_000 and limit:
                row["met"] = f"not judged: {values['steps']:,} steps"
            if not values.get("watched", True):
                row["notes"] = [f"did not see every step ({values['seen']} of {values['steps']})"]
        rows.append(row)
    return rows


def unmet(results: dict[str, Any]) -> list[str]:
    """Return limits that are not met or could not be judged."""
    rows = [row for row in _all_rows(results) if row["met"] not in {None, True}]
    return [f"{row.get('program', '')} {row['label']}: {_verdict(row)}".strip() for row in rows]


def _all_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for case in results["cases"] for row in case_rows(case)] + figure_rows(results)


def _verdict(row: dict[str, Any]) -> str:
    if row["met"] is None or isinstance(row["met"], str):
        return row["met"] or ""
    loop = row.get("loop")
    word = "met" if row["met"] else "NOT MET"
    if loop and loop.low <= row["limit"] < loop.high:
        word += " (within noise)"
    return word


def _cells(row: dict[str, Any]) -> list[str]:
    loop, whole = row.get("loop"), row.get("whole")
    return [
        row["program"],
        row["label"],
        f"{row['step_ms']:.2f}" if loop else "-",
        f"{loop.median:.3f}" if loop else "-",
        f"{loop.low:.3f} .. {loop.high:.3f}" + ("" if loop.confidence >= 0.95 else "*") if loop else "-",
        str(loop.count) if loop else "0",
        f"{whole.median:.3f}" if whole else "-",
        f"{row['whole_more_s']:+.2f}" if whole else "-",
        f"{row['limit']:.2f}" if row["limit"] else "",
        _verdict(row),
    ]


def _figure_cells(row: dict[str, Any]) -> list[str]:
    value = f"{row['value']:.4g} {row['unit']}".strip() if "value" in row else "-"
    limit = f"{row['limit']:g} {row['unit']}" if row["limit"] else ""
    return [row["label"], value, limit, _verdict(row)]


def _tables(results: dict[str, Any]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    rows = [_cells(row) for case in results["cases"] for row in case_rows(case)]
    return [
        (COLUMNS, rows),
        (("Holdfast itself", "figure", "limit", ""), [_figure_cells(row) for row in figure_rows(results)]),
    ]


def _format_notes(results: dict[str, Any]) -> list[str]:
    notes = [
        f"{row.get('program', 'Holdfast itself')}, {row['label']}: {note}"
        for row in _all_rows(results)
        for note in row["notes"]
    ]
    if any("*" in cell for _, rows in _tables(results) for row in rows for cell in row):
        notes.append("* all values: too few pairs for an interval of 95%")
    return notes


def _header(results: dict[str, Any]) -> str:
    machine = results["machine"]
    made = "quick run, only to try the bench" if results["quick"] else "full run"
    return (
        f"{made}, {results['date']}, {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        f"torch {machine['torch']}, Holdfast at {machine['commit']}, load at the start {machine['load_at_start']:.1f}"
    )


def as_text(results: dict[str, Any]) -> str:
    lines = [_header(results), ""]
    for columns, rows in _tables(results):
        if not rows:
            continue
        widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
        before = ""
        for row in [columns, *rows]:
            shown = ["" if i == 0 and row[0] == before else cell for i, cell in enumerate(row)]
            before = row[0]
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(shown, widths, strict=True)).rstrip())
        lines.append("")
    lines += _format_notes(results)
    missed, judged = unmet(results), sum(1 for row in _all_rows(results) if row["met"] is not None)
    lines.append(f"{judged} limits, {judged - len(missed)} met" + "".join(f"\n  {name}" for name in missed))
    return "\n".join(lines)


def as_markdown(results: dict[str, Any]) -> str:
    lines = [f"Measured: {_header(results)}.", ""]
    for columns, rows in _tables(results):
        if not rows:
            continue
        lines.append("| " + " | ".join(columns) + " |")
        lines.append("|" + "---|" * len(columns))
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    lines += [f"- {note}" for note in _format_notes(results)]
    return "\n".join(lines).rstrip()
