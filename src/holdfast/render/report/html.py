"""The report as one self-contained page: styles and curves inside, no script, nothing fetched.

jinja2 escapes every value except the style sheet and the curves, which svg.py draws from numbers only.
The page's content security policy also forbids scripts and requests.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from holdfast.render.report.svg import draw
from holdfast.render.report.text import split_code
from holdfast.render.report.timeline import FIRST_SHOWN

if TYPE_CHECKING:
    from holdfast.render.report.model import Report

_HERE = files("holdfast.render.report")


def render_page(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["prose"] = _prose
    style = Markup(_HERE.joinpath("report.css").read_text("utf-8"))  # noqa: S704 - our own file
    return environment.from_string(_HERE.joinpath(template).read_text("utf-8")).render(style=style, **values)


def as_html(report: Report) -> str:
    return render_page(
        "report.html.j2",
        report=report,
        first_shown=FIRST_SHOWN,
        plots=[draw(chart) for chart in report.charts],
        comparison_plot=draw(report.comparison.chart)
        if report.comparison is not None and report.comparison.chart is not None
        else None,
    )


def _prose(words: str) -> Markup:
    """Format a sentence with code between backticks."""
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if is_code else escape(part) for part, is_code in split_code(words))
