"""What the questions about a data set share: the form of their answers, and how images are named in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.schema.images import Survey
    from holdfast.schema.verdicts import Finding

EXAMPLES = 3
MAX_NAME = 120


class Judged(NamedTuple):
    message: str
    """One line: what was looked at."""
    findings: tuple[Finding, ...] = ()


def shown(path: str, root: str = "") -> str:
    """A path for people: below the data set's folder, on one line whatever is in it."""
    below = path.removeprefix(root.rstrip("/") + "/") if root else path
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in below)
    return plain if len(plain) <= MAX_NAME else "…" + plain[1 - MAX_NAME :]


def examples(paths: Sequence[str], root: str, most: int = EXAMPLES) -> str:
    """The first few, and how many more."""
    named = ", ".join(shown(path, root) for path in paths[:most])
    return named + (f" and {len(paths) - most:,} more" if len(paths) > most else "")


def many(count: int, one: str, more: str = "") -> str:
    """`1 image`, `2,000 images`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def share(part: float, whole: float) -> str:
    """`12%`; `0.4%` where that says more; never 0% of something, never 100% of less than all."""
    if not whole:
        return "0%"
    percent = 100 * part / whole
    if 0 < percent < 1 or 99 < percent < 100:
        return f"{min(max(percent, 0.1), 99.9):.1f}%"
    return f"{percent:.0f}%"


def class_name(survey: Survey, kind: int) -> str:
    name = survey.names.get(kind)
    return f"class {kind}" if name is None else shown(name)


def median(values: Iterable[float]) -> float:
    """The middle one; of an even number the upper, so that it is one that there is."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def looked_at(survey: Survey) -> str:
    """`2,000 images`, or how many of how many where the time was over."""
    if survey.complete:
        return many(survey.total, "image")
    return f"{len(survey.images):,} of {many(survey.total, 'image')} (evenly chosen: the time was over)"
