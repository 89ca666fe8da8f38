"""The report of a run with several stages: the result and duration of each, and the files. Each stage has its own complete report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.diagnosis.stages import load_staged_run
from holdfast.frameworks import all_frameworks
from holdfast.render.report import HTML, write_files
from holdfast.render.report.html import render_page
from holdfast.render.report.markdown import code, text
from holdfast.render.report.model import TONES
from holdfast.render.report.text import clean, moment
from holdfast.render.stages import count_of, deliverables, load_stages, reason_of, stages_summary, state_of
from holdfast.render.text import describe_change, format_shares, plural
from holdfast.schema.units import duration
from holdfast.storage.redact import replay_redacted

if TYPE_CHECKING:
    from holdfast.render.stages import StageView
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import RunFolder

RESULT_FILES = tuple(name for framework in all_frameworks() for name in framework.result_files)
MAX_NOTES = 8


@dataclass(frozen=True)
class Link:
    text: str
    path: str
    href: str


@dataclass(frozen=True)
class Row:
    """A stage."""

    number: int
    name: str
    tone: str
    state: str
    text: str
    settings: str
    began: str
    took: str
    attempts: str
    left: float
    width: float
    report: Link | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StagesReport:
    title: str
    verdict: str
    tone: str
    reason: str
    when: str
    figures: tuple[str, ...]
    rows: tuple[Row, ...]
    files: tuple[Link, ...]
    next_step: str | None
    time: str


def write_stages_report(run: RunFolder, plan: Plan | None = None) -> list[Path]:
    report = stages_report(run, plan)
    return write_files(run.path, as_markdown(report), render_page("stages.html.j2", report=report))


def stages_report(run: RunFolder, plan: Plan | None = None) -> StagesReport:
    staged_run = load_staged_run(replay_redacted(run, plan))
    summary = stages_summary(run, plan)
    stages = load_stages(run, staged_run, plan)
    spent = summary["goodput"]
    verdict = clean(str(summary["verdict"] or "not ended"), 40)
    total = sum(each.summary["goodput"]["wall_s"] for each in stages if each.summary) or 1.0
    rows, left = [], 0.0
    for each in stages:
        took = each.summary["goodput"]["wall_s"] if each.summary else 0.0
        rows.append(_row(run, each, left, 100 * took / total))
        left += 100 * took / total
    return StagesReport(
        title=clean(run.name, 120),
        verdict=verdict,
        tone=TONES.get(verdict, "open"),
        reason=clean(str(summary["reason"]), 800),
        when=moment(staged_run.started.at) if staged_run.started is not None else "",
        figures=(
            plural(count_of(staged_run), "stage"),
            plural(len(summary["attempts"]), "attempt"),
            duration(spent["wall_s"]),
            *([f"{spent['ratio']:.0%} useful training time"] if spent["ratio"] else []),
        ),
        rows=tuple(rows),
        files=tuple(_files(run, deliverables(staged_run))),
        next_step=f"holdfast resume {run.shell_reference}" if verdict in ("interrupted", "failed") else None,
        time=format_shares(spent["buckets"]),
    )


def _row(run: RunFolder, each: StageView, left: float, width: float) -> Row:
    stage = each.stage
    state = state_of(stage)
    attempts = each.summary.get("attempts", [])
    started = stage.started
    settings = started.settings if started is not None else {}
    listed = [
        f"{name} {settings[name]}"
        for name in ("imgsz", "batch", "epochs", "lr0", "mosaic", "mixup")
        if name in settings
    ]
    notes = [
        f"attempt {made['n']}: {change['setting']} {change['before']} -> {change['after']}: {change.get('why', '')}"
        for made in attempts
        for change in made["changes"]
    ]
    notes += [
        f"{finding['severity']} {finding['rule']}: {finding['message']}"
        for finding in each.summary.get("findings", [])
        if finding["severity"] != "note"
    ]
    page = each.run.path / HTML if each.run is not None else None
    return Row(
        number=stage.number,
        name=clean(stage.name, 80),
        tone={"good": "good", "bad": "bad"}.get(TONES.get(state, "open"), "stopped"),
        state=clean(state, 40),
        text=clean(reason_of(stage), 500),
        settings=clean(", ".join(listed), 200),
        began=clean(
            f"started with {started.weights}" if started is not None and started.weights else "from scratch", 300
        ),
        took=duration(each.summary["goodput"]["wall_s"]) if each.summary else "",
        attempts=plural(len(attempts), "attempt"),
        left=round(left, 2),
        width=round(width, 2),
        report=_link(run, "report", page) if page is not None and page.is_file() else None,
        notes=tuple(clean(note, 400) for note in [*_expected(each), *notes][:MAX_NOTES]),
    )


def _expected(each: StageView) -> list[str]:
    """What was measured before it, and what earlier stages had to change."""
    started = each.stage.started
    if started is None:
        return []
    return [
        *([started.expects] if started.expects else []),
        *(f"as before: {describe_change(c)}" for c in started.changes),
    ]


def _files(run: RunFolder, left: dict[str, str]) -> list[Link]:
    found: list[tuple[str, Path]] = [(name, Path(left[name])) for name in ("best", "last") if name in left]
    results = Path(left["results"]) if "results" in left else None
    if results is not None:
        found += [(name, results / name) for name in RESULT_FILES if (results / name).is_file()]
        found.append(("all results", results))
    return [_link(run, name, path) for name, path in found if path.exists()]


def _link(run: RunFolder, text: str, path: Path) -> Link:
    """Make a relative link, so that it still works in a copy of the folder."""
    relative = os.path.relpath(path, run.path)
    return Link(clean(text, 80), clean(str(path), 400), quote(relative))


def as_markdown(report: StagesReport) -> str:
    lines = [
        f"# {text(report.title)}: {text(report.verdict)}",
        "",
        text(" · ".join(fact for fact in (report.when, *report.figures) if fact)),
        "",
        text(report.reason),
        "",
        "## Stages",
        "",
    ]
    for row in report.rows:
        about = ", ".join(part for part in (row.settings, row.began, row.attempts, row.took) if part)
        lines.append(
            f"{row.number}. **{text(row.name, at_start=False)}**: {text(row.state, at_start=False)}{': ' if row.text else ''}{text(row.text, at_start=False)}"
        )
        lines.append(f"   {text(about, at_start=False)}")
        lines += [f"   - {text(note, at_start=False)}" for note in row.notes]
        if row.report is not None:
            lines.append(f"   - [{text(row.report.text)}]({row.report.href})")
    if report.files:
        lines += ["", "## Files", ""]
        lines += [f"- {text(link.text)}: [{code(link.path)}]({link.href})" for link in report.files]
    if report.time:
        lines += ["", "## Where the time went", "", text(report.time)]
    if report.next_step is not None:
        lines += ["", "## What to do next", "", "```sh", report.next_step, "```"]
    return "\n".join([*lines, ""])
