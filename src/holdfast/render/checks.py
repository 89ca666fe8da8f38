"""Checks: their progress, their results as a table and as JSON, and docs/checks.md."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from holdfast.render.console import console, print_json, say
from holdfast.render.text import plural, printable
from holdfast.schema.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.progress import Task
    from typing_extensions import Self

    from holdfast.preflight.checks.check import Check, CheckContext
    from holdfast.preflight.checks.runner import Report, Result

SCHEMA = 1
QUIET_S = 2.0
"""Without a terminal, checks that take longer than this are announced."""
REPORT_EVERY = 10
"""Percent, without a terminal."""
STYLES = {"passed": "green", "warn": "yellow", "fatal": "bold red", "not checked": "dim", "note": "cyan"}
MAX_FINDINGS = 6
WIDE = 110
"""Minimum terminal width for a separate column of remedies."""


class _WhenCounted(ProgressColumn):
    """Wraps another column and shows it only if the total is known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return Text("") if task.total is None else self._column.render(task)


class ChecksProgress:
    """On a terminal, a line with a spinner, plus a bar if the total is known. Otherwise plain lines for slow checks. All on stderr."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _WhenCounted(BarColumn()),
            _WhenCounted(MofNCompleteColumn()),
            TimeElapsedColumn(),
            console=console(sys.stderr),
            transient=True,
            disable=not self._on_terminal,
        )
        self._task = self._bar.add_task("", total=None, visible=False)
        self._timer: threading.Timer | None = None
        self._what, self._reported, self._slow = "", 0, False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._cancel_timer()
        self._bar.stop()

    def on_query(self) -> None:
        self._begin("inspecting the Python interpreter of your script")

    def on_check_start(self, check: Check) -> None:
        self._begin(check.id)

    def update(self, done: int, total: int | None, what: str) -> None:
        if self._on_terminal:
            doing = f"{self._what}: {printable(what, 60)}"
            self._bar.update(self._task, completed=done, total=total, description=doing)
            return
        percent = 100 * done // total if total else 0
        if self._slow and percent >= self._reported + REPORT_EVERY:
            self._reported = percent - percent % REPORT_EVERY
            _print(f"{self._what}: {done:,} of {total:,} {printable(what, 60)}")

    def on_check_end(self, result: Result) -> None:  # noqa: ARG002 - part of the protocol
        self._cancel_timer()

    def _begin(self, what: str) -> None:
        self._cancel_timer()
        self._what, self._reported, self._slow = what, 0, False
        if self._on_terminal:
            self._bar.remove_task(self._task)  # a task with a total cannot lose it again
            self._task = self._bar.add_task(what, total=None)
            return
        self._timer = threading.Timer(QUIET_S, self._announce, [what])
        self._timer.daemon = True
        self._timer.start()

    def _announce(self, what: str) -> None:
        self._slow = True
        _print(f"{what} ...")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _print(line: str) -> None:
    say(line, by="holdfast check")


# --- results ------------------------------------------------------------------------------------------------


def show(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(as_builtins(report))
        return
    shown = console(sys.stdout)
    shown.print(Text(_heading(report.context)), soft_wrap=True)
    shown.print(table(report, shown.width))
    shown.print(Text(_sum(report), style=STYLES["fatal"] if report.exit_status else ""))


def warnings(report: Report) -> list[str]:
    """Return one line per warning, to print before the run starts."""
    found = [(result.check.id, one) for result in report.results for one in result.findings if one.severity == "warn"]
    return [f"check {name}: {one.message}" + (f" ({one.remedies[0]})" if one.remedies else "") for name, one in found]


def as_builtins(report: Report) -> dict[str, Any]:
    context = report.context
    return {
        "schema": SCHEMA,
        "python": None if context.interpreter is None else msgspec.to_builtins(context.interpreter),
        "no_python": context.no_interpreter or None,
        "device": context.device,
        "data": None if context.data is None else str(context.data),
        "checks": [
            {
                "id": result.check.id,
                "kind": result.check.kind,
                "status": result.status,
                "message": result.message,
                "findings": [msgspec.to_builtins(finding) for finding in result.findings],
                "seconds": result.seconds,
            }
            for result in report.results
        ],
        "counts": _counts(report),
        "seconds": report.seconds,
        "exit_status": report.exit_status,
    }


def table(report: Report, width: int) -> Table:
    """Return the table of results. On a narrow terminal, the remedy is printed below the result."""
    wide = width >= WIDE
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("", no_wrap=True)
    rows.add_column("check", no_wrap=True)
    rows.add_column("result" if wide else "result, and what to do", overflow="fold", ratio=3)
    if wide:
        rows.add_column("what to do", overflow="fold", ratio=2)
    for status, name, answer, remedy in _rows(report):
        cells = [Text(printable(answer, 600)), Text(printable(remedy, 400))]
        if not wide:
            cells = [Text(f"{cells[0].plain}\n→ {cells[1].plain}") if remedy else cells[0]]
        rows.add_row(Text(status, style=STYLES[status]), Text(name), *cells)
    return rows


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """Yield status, check, result, remedy. Checks that were skipped for the same reason are grouped at the end."""
    unchecked: dict[str, list[str]] = {}
    for result in report.results:
        name = result.check.id
        if result.status == "not checked":
            unchecked.setdefault(result.message, []).append(name)
            continue
        if result.status == "passed":
            yield result.status, name, result.message, ""
        for n, found in enumerate(result.findings[:MAX_FINDINGS]):
            label = name if n == 0 and result.status != "passed" else ""
            yield found.severity, label, found.message, "; ".join(found.remedies[:2])
        left = len(result.findings) - MAX_FINDINGS
        if left > 0:
            yield result.findings[MAX_FINDINGS].severity, "", f"and {left} more: --json lists all", ""
    for why, names in unchecked.items():
        yield "not checked", "\n".join(names), why, ""


def _heading(context: CheckContext) -> str:
    python = context.interpreter
    if python is None:
        return printable(f"No Python found: {context.no_interpreter}.")
    torch = f"torch {python.torch.version}" if python.torch is not None else "no torch"
    device = context.device or "not specified"
    return printable(f"Python {python.python} at {python.executable}, {torch}, device: {device}")


def _counts(report: Report) -> dict[str, int]:
    kinds = ("passed", "warn", "fatal", "not checked")
    return {kind: sum(result.status == kind for result in report.results) for kind in kinds}


def _sum(report: Report) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in _counts(report).items() if count)
    total = f"{plural(len(report.results), 'check')}: {counts}, {duration(report.seconds)}"
    fatal = [result.check.id for result in report.results if result.status == "fatal"]
    if fatal:
        return f"{total}\nFix these before you start: {', '.join(fatal)}."
    return total


# --- pages ------------------------------------------------------------------------------------------------------


INTRODUCTION = (
    "`holdfast check -- COMMAND` or `holdfast check PLAN.toml` runs these checks before you start training. Without a command or a",
    "plan, only the checks that need neither are run. `holdfast run PLAN.toml` runs them too, unless you use `--no-check`. Each check",
    "has one of these results:",
    "",
    "- `passed`: no problem was found. There may be notes, which are only information.",
    "- `warn`: training can start, but it is likely to be slow, to fail, or to produce a poor model.",
    "- `fatal`: training would fail, or the model would learn nothing. `holdfast check` exits with status 3, and `holdfast run` does not start the plan.",
    "- `not checked`: the check does not apply, or could not be completed. The reason is shown.",
    "",
    "A *finding* is a problem that a check reports, with its evidence and advice. The *dry run* executes the first steps of your script",
    "in a scratch copy of its working directory (see [dry_run.md](dry_run.md)). The word below the name of a check is its kind. Use",
    "`--only` and `--skip` with the name or the kind of a check to select checks.",
    "",
    "This page is generated from the source code by `make docs`.",
)


def as_markdown() -> str:
    """Return docs/checks.md, made from the checks' docstrings."""
    from holdfast.preflight.checks import all_checks  # noqa: PLC0415 - only `make docs` needs it

    parts = ["# Checks", "", *INTRODUCTION, ""]
    for check in all_checks():
        parts += [f"## {check.id}", "", f"*{check.kind}*", "", check.page.strip(), ""]
        if cases := check.cases():
            parts += [
                "Examples (situation: result):",
                "",
                *(f"- {case.description}: {case.expected}" for case in cases),
                "",
            ]
    return "\n".join(parts)
