"""Shared parts of the dataset checks: the type of their results, and the formatting of paths and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.schema.images import Survey
    from holdfast.schema.verdicts import Finding

MAX_EXAMPLES = 3
MAX_NAME = 120


class CheckResult(NamedTuple):
    message: str
    """One line: what was checked."""
    findings: tuple[Finding, ...] = ()


def format_path(path: str, root: str = "") -> str:
    """Format a path for display: relative to the folder of the dataset, on one line regardless of its characters."""
    below = path.removeprefix(root.rstrip("/") + "/") if root else path
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in below)
    return plain if len(plain) <= MAX_NAME else "…" + plain[1 - MAX_NAME :]


def format_examples(paths: Sequence[str], root: str, limit: int = MAX_EXAMPLES) -> str:
    """Format the first few paths, and the number of the others."""
    named = ", ".join(format_path(path, root) for path in paths[:limit])
    return named + (f" and {len(paths) - limit:,} more" if len(paths) > limit else "")


def format_count(count: int, singular: str, plural: str = "") -> str:
    """`1 image`, `2,000 images`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def format_percent(part: float, whole: float) -> str:
    """Format a percentage: `12%`, or `0.4%` if that is more precise. Only nothing is 0%, and only everything is 100%."""
    if not whole:
        return "0%"
    percent = 100 * part / whole
    if 0 < percent < 1 or 99 < percent < 100:
        return f"{min(max(percent, 0.1), 99.9):.1f}%"
    return f"{percent:.0f}%"


def class_name(survey: Survey, kind: int) -> str:
    name = survey.names.get(kind)
    return f"class {kind}" if name is None else format_path(name)


def median(values: Iterable[float]) -> float:
    """Return the median. For an even number of values, return the upper of the two middle ones."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def describe_coverage(survey: Survey) -> str:
    """Return `2,000 images`, or the number of checked images if the check ran out of time."""
    if survey.complete:
        return format_count(survey.total, "image")
    return (
        f"{len(survey.images):,} of {format_count(survey.total, 'image')} (an even sample: the time limit was reached)"
    )
