"""The report as Markdown, for a terminal, an issue or an email. Each curve is one line of block characters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.render.report.model import ANSWER_NAMES
from holdfast.render.report.svg import sparkline
from holdfast.render.report.text import split_code
from holdfast.render.report.timeline import FIRST_SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.render.report.compare import Comparison, Row
    from holdfast.render.report.model import FindingView, Report

_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_AT_START = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=]))")
"""Text that would start a list or a horizontal line."""


def text(words: str, *, at_start: bool = True) -> str:
    """Escape words for Markdown and HTML."""
    plain = "".join(_ENTITIES.get(letter, letter) for letter in words)
    marked = _SPECIAL.sub(r"\\\1", plain)
    return _AT_START.sub(r"\1\\", marked.lstrip()) if at_start else marked


def code(words: str) -> str:
    """Put words into a code span with more backticks than any run of backticks inside."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    room = " " if words.startswith("`") or words.endswith("`") or not words else ""
    return f"{fence}{room}{words}{room}{fence}"


def prose(words: str) -> str:
    """Format a sentence with code between backticks."""
    return "".join(
        code(part) if is_code else text(part, at_start=not n) for n, (part, is_code) in enumerate(split_code(words))
    )


def block(lines: Iterable[str], language: str = "text") -> list[str]:
    body = list(lines)
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *body, fence]


def as_markdown(report: Report) -> str:
    parts = [
        [f"# {text(report.title)}: {text(report.verdict)}"],
        [text(" · ".join(fact for fact in (report.when, *report.figures) if fact))],
        *([prose(sentence)] for sentence in report.story),
        _next(report),
        _cause(report),
        _verdict(report),
        _attempts(report),
        _curves(report),
        _findings(report),
        _section("Unknown", [f"- {prose(line)}" for line in report.unknown]),
        _cost(report),
        _files(report),
        _compare(report.comparison) if report.comparison is not None else [],
        _section("Setup", [f"- {text(name)}: {code(value)}" for name, value in report.setup]),
        _last_lines(report),
        ["---"],
        ["Written by Holdfast. `report.html` in this folder has the plots."],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    return [f"## {title}", "", *lines] if lines else []


def _next(report: Report) -> list[str]:
    lines = []
    for n, step in enumerate(report.next_steps, 1):
        lines.append(f"{n}. {prose(step.text)}")
        if step.command is not None:
            lines += ["", *(f"   {line}" for line in block([step.command], "sh")), ""]
    return _section("What to do next", lines)


def _cause(report: Report) -> list[str]:
    if report.cause is None:
        return []
    decisive = next((finding for finding in report.findings if finding.decisive), None)
    lines = [f"{code(report.cause)}, {report.confidence}.", ""]
    lines += [f"- {prose(line)}" for line in report.why]
    for head, words in decisive.page if decisive is not None else ():
        lines += ["", f"{text(head)}: {prose(words)}"]
    return _section("Cause", lines)


def _verdict(report: Report) -> list[str]:
    lines = [] if report.has_reason_in_story else [f"**{text(report.verdict)}**: {text(report.reason)}", ""]
    lines += [
        f"- {proof.sign} {text(proof.name)} ({ANSWER_NAMES[proof.answer]}): {text(proof.detail)}"
        for proof in report.proofs
    ]
    return _section("Verdict and evidence", lines)


def _attempts(report: Report) -> list[str]:
    lines = []
    for n, attempt in enumerate(report.timeline.attempts):
        if n == FIRST_SHOWN and report.timeline.between:
            lines.append(f"- {report.timeline.between}")
        facts = ", ".join(fact for fact in (attempt.steps, attempt.took, attempt.how) if fact)
        lines.append(f"- **attempt {attempt.number}**: {text(facts)}")
        lines += [f"  - {text(more)}" for more in (attempt.began, attempt.why, attempt.then) if more]
        lines += [f"  - saved: {text(attempt.saved)}"] if attempt.saved else []
    return _section("Attempts", lines)


def _curves(report: Report) -> list[str]:
    lines = []
    for chart in report.charts:
        lines += [f"**{text(chart.title)}.** {text(chart.caption)}", ""]
        drawn = [(line.name, sparkline(line, log=chart.log)) for line in chart.lines]
        widest = max((len(name) for name, _ in drawn), default=0)
        lines += [*block(f"{name:{widest}}  {curve}" for name, curve in drawn if curve), ""] if drawn else []
    return _section("Curves", lines)


def _findings(report: Report) -> list[str]:
    lines = [line for finding in report.findings for line in _finding(finding)]
    if report.findings_left_out:
        lines.append(f"Not shown: {report.findings_left_out} (see `summary.json`).")
    return _section("Findings", lines)


def _finding(finding: FindingView) -> Iterator[str]:
    sure = "" if finding.confidence == "proven" else f", {finding.confidence}"
    yield f"### {finding.number}. {finding.severity}: {text(finding.rule)}"
    yield ""
    yield f"{prose(finding.message)} ({text(finding.where)}{sure})" if finding.where else prose(finding.message)
    yield ""
    yield from (f"- evidence: {prose(line)}" for line in finding.evidence)
    yield from (f"- remedy: {prose(line)}" for line in finding.remedies)
    yield ""


def _cost(report: Report) -> list[str]:
    lines = [text(report.cost.text), ""] if report.cost.text else []
    if report.cost.shares:
        lines += ["| time spent on | | |", "|---|---:|---:|"]
        lines += [f"| {text(share.text)} | {share.took} | {share.part} |" for share in report.cost.shares]
    return _section("Cost", lines)


def _files(report: Report) -> list[str]:
    lines = [
        f"- {'usable' if file.usable else 'NOT usable'}: {code(file.path)}, {file.step}: {text(file.why)}"
        for file in report.files
    ]
    if report.files_left_out:
        lines.append(f"- not shown: {report.files_left_out} older ones (see `journal.jsonl`)")
    return _section("Checkpoints", lines)


def _compare(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.chart is not None:
        drawn = [(line.name, sparkline(line, log=comparison.chart.log)) for line in comparison.chart.lines]
        widest = max(len(name) for name, _ in drawn)
        lines += ["Both losses:", "", *block(f"{name:{widest}}  {curve}" for name, curve in drawn), ""]
    lines += _table("Results", comparison.results, comparison.name)
    if comparison.settings:
        lines += ["", *_table("Settings that differ", comparison.settings, comparison.name)]
    else:
        lines += ["", "Command, versions and environment are the same."]
    if comparison.same and comparison.settings:
        lines += ["", f"Identical in both runs: {text(', '.join(comparison.same))}."]
    return _section(f"Compared with {text(comparison.name)}", lines)


def _table(title: str, rows: tuple[Row, ...], name: str) -> list[str]:
    return [
        f"| {title} | this run | {text(name)} |",
        "|---|---|---|",
        *(f"| {text(row.what)} | {text(row.here)} | {text(row.there)} |" for row in rows),
    ]


def _last_lines(report: Report) -> list[str]:
    if not report.last_lines:
        return []
    return _section(f"Last output of attempt {report.last_lines_of}", block(report.last_lines))
