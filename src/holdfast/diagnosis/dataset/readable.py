"""Can every image be decoded, and does its format match its name?"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import (
    CheckResult,
    describe_coverage,
    find_lost_split,
    format_count,
    format_examples,
    format_first,
    format_path,
    make_result,
)
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import ImageRecord, Oddity, Problem, Survey

PROBLEMS: dict[Problem, str] = {
    "missing": "listed, but missing",
    "refused": "no permission to read it",
    "not-a-file": "not a file",
    "empty": "an empty file",
    "not-an-image": "not an image that can be opened",
    "truncated": "truncated",
    "broken": "damaged",
    "too-small": "less than 10 pixels wide or high",
    "too-many-pixels": "more pixels than Pillow accepts",
    "reader-died": "crashed the process that decoded it",
    "too-slow": "took too long to decode",
}
ODDITIES: dict[Oddity, tuple[str, str]] = {
    "extension": (
        "have a format that does not match their extension",
        "harmless for training, which reads the file header; other tools rely on the extension",
    ),
    "cmyk": ("are CMYK", "their colours are converted when they are read: check one of them in a training batch"),
    "16-bit": (
        "have more than 8 bits per channel",
        "they are read as 8 bits, and dark images become black: convert them yourself, with the value range that you need",
    ),
    "tail": (
        "are JPEGs with extra data after the end of the image",
        "training rewrites such files in place, with another quality, when it first reads them: keep a copy",
    ),
    "not-decoded": ("are so large that only the header was read", "open one of them by hand"),
    "not-scanned": ("were not checked: there is no plugin for their format", "convert them to JPEG or PNG"),
}
MAX_UNUSABLE = 0.5
"""As a fraction of the images of a split: with this many unusable images, it is not the training that was planned."""


def judge(survey: Survey, rule: str) -> CheckResult:
    if not survey.decoded:
        return CheckResult("no images were decoded: Pillow is not installed in this Python (pip install pillow)")
    bad = [image for image in survey.images if image.seen.problem is not None]
    formats = sorted({image.seen.format for image in survey.images if image.seen.format})
    kinds = f" ({', '.join(formats)})" if formats else ""
    usable = f"{len(bad):,} of them unusable" if bad else "all readable"
    message = f"{describe_coverage(survey)}{kinds}, {usable}"
    return make_result(rule, message, _check_unusable(survey, bad), _check_unusual(survey))


def _check_unusable(survey: Survey, bad: list[ImageRecord]) -> Finding | None:
    if not bad:
        return None
    by_problem: dict[Problem, list[ImageRecord]] = defaultdict(list)
    for image in bad:
        if image.seen.problem is not None:
            by_problem[image.seen.problem].append(image)

    def describe(image: ImageRecord) -> str:
        detail = f" ({format_path(image.seen.detail)})" if image.seen.detail else ""
        return format_path(image.path, survey.root) + detail

    lost = find_lost_split(survey, bad, MAX_UNUSABLE)
    share = f": {lost[1]} of {lost[0]}" if lost is not None else ""
    return Finding(
        severity="fatal" if lost is not None else "warn",
        message=f"{format_count(len(bad), 'image')} cannot be used for training{share}. Training skips such images, or fails in the "
        "middle of an epoch.",
        evidence=[
            f"{PROBLEMS[problem]}: {len(images):,}: {format_first(images, describe)}"
            for problem, images in sorted(by_problem.items(), key=lambda item: -len(item[1]))
        ],
        remedies=[
            "fetch these files again, or remove them and their labels; then delete the *.cache files next to the labels"
        ],
    )


def _check_unusual(survey: Survey) -> Finding | None:
    by_oddity: dict[Oddity, list[str]] = defaultdict(list)
    for image in survey.images:
        for oddity in image.seen.oddities:
            by_oddity[oddity].append(image.path)
    if not by_oddity:
        return None
    ordered = sorted(by_oddity.items(), key=lambda item: -len(item[1]))
    kinds = ", ".join(f"{len(paths):,} {ODDITIES[oddity][0]}" for oddity, paths in ordered)
    return Finding(
        severity="note",
        message=f"Some images are unusual: {kinds}.",
        evidence=[f"{ODDITIES[oddity][0]}: {format_examples(paths, survey.root)}" for oddity, paths in ordered],
        remedies=[ODDITIES[oddity][1] for oddity, _ in ordered],
    )
