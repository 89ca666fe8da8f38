"""Shared parts of the dataset checks: the type of their results, and the formatting of paths and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.schema.images import ImageRecord, Survey
    from holdfast.schema.verdicts import Finding

T = TypeVar("T")
MAX_EXAMPLES = 3
MAX_NAME = 120


class CheckResult(NamedTuple):
    message: str
    """One line: what was checked."""
    findings: tuple[Finding, ...] = ()


def make_result(rule: str, message: str, *findings: Finding | None) -> CheckResult:
    """Return the result with those findings that are not None, under the id of the check."""
    named = (msgspec.structs.replace(finding, rule=rule) for finding in findings if finding is not None)
    return CheckResult(message, tuple(named))


def format_path(path: str, root: str = "") -> str:
    """Format a path for display: relative to the folder of the dataset, on one line regardless of its characters."""
    below = path.removeprefix(root.rstrip("/") + "/") if root else path
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in below)
    return plain if len(plain) <= MAX_NAME else "…" + plain[1 - MAX_NAME :]


def format_first(items: Sequence[T], text: Callable[[T], str], limit: int = MAX_EXAMPLES) -> str:
    """Format the first few items, and the number of the others."""
    more = f" and {len(items) - limit:,} more" if len(items) > limit else ""
    return ", ".join(map(text, items[:limit])) + more


def format_examples(paths: Sequence[str], root: str) -> str:
    return format_first(paths, lambda path: format_path(path, root))


def find_lost_split(survey: Survey, lost: Sequence[ImageRecord], limit: float) -> tuple[str, str] | None:
    """Return the first split that loses at least this fraction of its images, and how many: `train`, `61%`."""
    for split in ("train", "val"):
        total, count = len(survey.split(split)), sum(image.split == split for image in lost)
        if total and count >= limit * total:
            return split, format_percent(count, total)
    return None


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
