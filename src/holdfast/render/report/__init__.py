"""The report of a run: `report.md`, and one `report.html` that needs nothing else.

run state -> Report (content.py) -> text (markdown.py), page (html.py, plots.py)
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
    """Write both forms into the folder; raises OSError where that cannot be written.

    `reference` is what `holdfast resume` calls this run by; without it the report does not offer to resume.
    """
    from holdfast.render.report.model import report_of  # noqa: PLC0415 - all of this only when a report is written

    return write(report_of(state, title=title, reference=reference, other=other), folder)


def write(report: Report, folder: Path) -> list[Path]:
    from holdfast.render.report.html import as_html  # noqa: PLC0415 - jinja2 only when a report is written
    from holdfast.render.report.markdown import as_markdown  # noqa: PLC0415

    written = []
    for name, text in ((MARKDOWN, as_markdown(report)), (HTML, as_html(report))):
        write_atomically(folder / name, text)
        written.append(folder / name)
    return written
