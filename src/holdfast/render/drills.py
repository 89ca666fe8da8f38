"""Drills: the list, the complete result of one, and a table of all results that is printed while they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.render.console import print_json, print_line, print_lines, show_progress
from holdfast.render.text import plural, printable
from holdfast.schema.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

Outcome = dict[str, Any]
WIDTH = 22


def print_list(drills: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(drills)
        return
    for drill in drills:
        print_line(f"{drill['name']:{WIDTH}}{drill['description']}")
    print_lines(["", "`holdfast drill NAME` runs one of them; `holdfast drill all` runs all of them."])


def print_outcomes(progress: Iterable[tuple[Any, Outcome | None]], count: int, *, in_full: bool, as_json: bool) -> int:
    """Print each result as the drills run. Return the exit status."""
    outcomes: list[Outcome] = []
    for drill, outcome in progress:
        if outcome is None:
            _show_current(drill.name, len(outcomes) + 1, count)
            continue
        outcomes.append(outcome)
        if not as_json:
            print_lines(_in_full(outcome) if in_full else _row(outcome))
    if as_json:
        print_json(outcomes)
    elif not in_full:
        print_lines(_sum(outcomes))
    return 1 if any(outcome["status"] == "failed" for outcome in outcomes) else 0


def _show_current(name: str, number: int, count: int) -> None:
    """On a terminal, print a line that the result overwrites."""
    show_progress(f"{number} of {count}: {name} ...")


def _row(outcome: Outcome) -> list[str]:
    head = f"{outcome['status']:8}{outcome['name']:{WIDTH}}"
    if outcome["status"] == "skipped":
        return [f"{head}{outcome['problems'][0]}"]
    found = ", ".join(_where(finding) for finding in outcome["findings"] if finding["expected"])
    verdict = outcome.get("verdict") or "no verdict"
    lines = [f"{head}{found or 'nothing found'}; {verdict}, {duration(outcome['seconds'])}"]
    if outcome["problems"]:
        lines += [f"{'':8}{'':{WIDTH}}{printable(problem)}" for problem in outcome["problems"]]
        lines.append(f"{'':8}{'':{WIDTH}}folder: {outcome['dir']}")
    return lines


def _where(finding: dict[str, Any]) -> str:
    if finding["step"] is None:
        return f"{finding['severity']} {finding['rule']}"
    return f"{finding['severity']} {finding['rule']} at step {finding['step']}"


def _sum(outcomes: list[Outcome]) -> list[str]:
    counts = [
        f"{sum(outcome['status'] == status for outcome in outcomes)} {status}"
        for status in ("passed", "failed", "skipped")
    ]
    took = duration(sum(outcome["seconds"] for outcome in outcomes))
    folders = sorted({str(Path(outcome["dir"]).parents[1]) for outcome in outcomes if outcome["dir"]})
    return [
        "",
        f"{plural(len(outcomes), 'drill')}: {', '.join(counts)}, {took}",
        *(f"run folders: {path}" for path in folders),
    ]


def _in_full(outcome: Outcome) -> list[str]:
    lines = [
        f"{outcome['name']}: {outcome['description']}",
        f"  reproduces  {outcome['reproduces']}",
        f"  fault       {outcome['fault']}",
    ]
    if outcome["status"] == "skipped":
        return [*lines, f"  skipped     {outcome['problems'][0]}"]
    lines += [
        f"  fired       {printable(fired['what'])}, step {fired['step']}" + _detail(fired)
        for fired in outcome.get("fired", [])
    ]
    for finding in outcome["findings"]:
        after = f", {plural(finding['steps_after'], 'step')} after the fault" if outcome.get("fired") else ""
        lines.append(f"  {finding['severity']:12}{finding['rule']} at step {finding['step']}{after}")
        lines.append(f"              {printable(finding['message'])}")
    if outcome.get("verdict") is not None:
        attempts = plural(outcome["attempts"], "attempt")
        lines.append(f"  verdict     {outcome['verdict']}: {printable(outcome['reason'])} ({attempts})")
    lines.append(f"  folder      {outcome['dir']}")
    if outcome["status"] == "passed":
        lines.append(f"passed in {duration(outcome['seconds'])}")
    else:
        lines += [f"failed: {printable(problem)}" for problem in outcome["problems"]]
    return lines


def _detail(fired: dict[str, Any]) -> str:
    return f" ({printable(fired['detail'])})" if fired["detail"] else ""
