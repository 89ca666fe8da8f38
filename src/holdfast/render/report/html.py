"""The report as one page that opens anywhere: styles and curves inside, no script, nothing fetched.

jinja2 escapes every value that the template does not mark as safe; the only such values are the curves, which plots.py
makes of numbers alone, and the style sheet. The page also forbids itself to run or fetch anything.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup, escape

from holdfast.render.report.svg import draw
from holdfast.render.report.text import pieces
from holdfast.render.report.timeline import FIRST_TOLD

if TYPE_CHECKING:
    from holdfast.render.report.model import Report

_HERE = files("holdfast.render.report")


def as_html(report: Report) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["prose"] = _prose
    template = environment.from_string(_HERE.joinpath("report.html.j2").read_text("utf-8"))
    return template.render(
        report=report,
        first_told=FIRST_TOLD,
        style=Markup(_HERE.joinpath("report.css").read_text("utf-8")),  # noqa: S704 - our own file
        plots=[draw(chart) for chart in report.charts],
        comparison_plot=draw(report.comparison.chart)
        if report.comparison is not None and report.comparison.chart is not None
        else None,
    )


def _prose(words: str) -> Markup:
    """A sentence in which code stands between backticks."""
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if is_code else escape(part) for part, is_code in pieces(words))
