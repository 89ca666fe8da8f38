"""Output of `diagnose`: the panel of a run that another tool recorded, as text, JSON or a report."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.render.box import Box
from holdfast.render.console import console, print_json, print_lines
from holdfast.render.panel import COLOURS, SEVERITY_COLOURS
from holdfast.render.summary import summary_of
from holdfast.render.text import printable
from holdfast.schema.errors import FolderNotWritable
from holdfast.storage.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.importers.diagnose import Diagnosis
    from holdfast.render.box import Row

MAX_EVIDENCE = 4
MAX_REMEDIES = 3


def show(diagnosis: Diagnosis, *, report: Path | None, as_json: bool) -> None:
    files = _write_report(diagnosis, report) if report is not None else []
    if as_json:
        print_json({**as_builtins(diagnosis), "report": [str(file) for file in files]})
        return
    console(sys.stdout).print(panel(diagnosis), soft_wrap=True)
    print_lines(f"  {file}" for file in files)


def as_builtins(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the fields of a summary, with what was read and its detected format."""
    reading = diagnosis.reading
    summary = summary_of(RunFolder(Path(diagnosis.path)), diagnosis.state)
    if not reading.is_holdfast_journal:
        del summary["goodput"]  # the time was not measured
    return {
        **summary,
        "run": reading.name,
        "dir": diagnosis.path,
        "what": reading.what,
        "reason": diagnosis.verdict.reason if diagnosis.verdict is not None else diagnosis.explanation.story[0],
        "exit_status": diagnosis.exit_status,
        "position": reading.position or None,
        "facts": diagnosis.facts,
        "notes": reading.notes,
        "explanation": asdict(diagnosis.explanation),
    }


def panel(diagnosis: Diagnosis) -> Box:
    verdict = diagnosis.verdict
    outcome = verdict.outcome.value if verdict is not None else "not ended" if diagnosis.state.attempts else "settings"
    colour = COLOURS.get(outcome, "cyan")
    rows = ((label, style, _safe(text)) for label, style, text in _rows(diagnosis, outcome, colour))
    return Box(f"holdfast · diagnose {_safe(diagnosis.reading.name, 80)}", rows, colour)


def _rows(diagnosis: Diagnosis, outcome: str, colour: str) -> Iterator[Row]:
    explained, reading = diagnosis.explanation, diagnosis.reading
    for n, sentence in enumerate(explained.story):
        yield outcome if n == 0 else "", f"bold {colour}", sentence
    for fact in diagnosis.facts:
        yield "", "", fact
    yield from _findings(diagnosis)
    if explained.cause is not None:
        yield "cause", "bold", f"{explained.cause} ({explained.confidence})"
    elif outcome == "failed" or (reading.has_log and reading.end is not None and not reading.end.is_known):
        yield "cause", "bold", "could not be determined"
    for question in explained.unknown:
        yield "not known", "bold", question
    for step in explained.next_steps:
        yield "next", "bold", step.text
        if step.command is not None:
            yield "", "", f"$ {step.command}"
    if diagnosis.state.attempts:
        for note in reading.notes:
            yield "read", "bold", note


def _safe(text: str, most: int = 600) -> str:
    return printable(text, most).encode("utf-8", "replace").decode()


def _findings(diagnosis: Diagnosis) -> Iterator[Row]:
    shown = {finding.rule: finding for finding in diagnosis.state.findings}
    for finding in sorted(shown.values(), key=lambda found: ("fatal", "warn", "note").index(found.severity)):
        yield finding.severity, SEVERITY_COLOURS[finding.severity], f"{finding.rule}: {finding.message}"
        for evidence in finding.evidence[:MAX_EVIDENCE]:
            yield "  seen", "", evidence
        if finding.severity == "note":  # remedies of the others are listed under "next"
            for remedy in finding.remedies[:MAX_REMEDIES]:
                yield "  do", "", remedy


def _write_report(diagnosis: Diagnosis, folder: Path) -> list[Path]:
    """Write the report of the run state, with what only the diagnosis knows."""
    from holdfast.render.report import write  # noqa: PLC0415 - only needed for a report
    from holdfast.render.report.model import Todo, report_of  # noqa: PLC0415
    from holdfast.render.report.text import clean  # noqa: PLC0415

    explained, reading = diagnosis.explanation, diagnosis.reading
    report = report_of(diagnosis.state, title=reading.name)
    read = [
        ("read", clean(f"{reading.what}: {diagnosis.path}", 400)),
        *(("note", clean(note, 400)) for note in reading.notes),
    ]
    report = replace(
        report,
        story=tuple(clean(sentence, 600) for sentence in [*explained.story, *diagnosis.facts]),
        next_steps=tuple(
            Todo(clean(step.text, 400), clean(step.command, 1000) if step.command else None)
            for step in explained.next_steps
        ),
        unknown=tuple(clean(question, 600) for question in explained.unknown),
        setup=(*read, *report.setup),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write(report, folder)
    except OSError as error:
        raise FolderNotWritable(
            f"Cannot write the report to {folder}: {error.strerror}.",
            next_step="pass --report a writable folder with free space",
        ) from error
