"""The report of a run: `report.md`, and a self-contained `report.html`.

run state -> Report (model.py) -> Markdown (markdown.py), HTML page (html.py, svg.py)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.storage.folder import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.run_state import RunState
    from holdfast.render.report.model import Report

MARKDOWN = "report.md"
HTML = "report.html"


def write_report(
    state: RunState, folder: Path, *, title: str, other: RunState | None = None, reference: str | None = None
) -> list[Path]:
    """Write both files to the folder. Raise OSError if that fails.

    `reference` is the name of the run for `holdfast resume`. Without it, the report does not suggest to resume.
    """
    from holdfast.render.report.model import report_of  # noqa: PLC0415 - only needed to write a report

    return write(report_of(state, title=title, reference=reference, other=other), folder)


def write(report: Report, folder: Path) -> list[Path]:
    from holdfast.render.report.html import as_html  # noqa: PLC0415 - jinja2 is only needed to write a report
    from holdfast.render.report.markdown import as_markdown  # noqa: PLC0415

    return write_files(folder, as_markdown(report), as_html(report))


def write_files(folder: Path, markdown: str, html: str) -> list[Path]:
    write_atomically(folder / MARKDOWN, markdown)
    write_atomically(folder / HTML, html)
    return [folder / MARKDOWN, folder / HTML]
