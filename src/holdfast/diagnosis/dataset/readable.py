"""Can every image be decoded, and is it what its name says?"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import Judged, examples, looked_at, many, share, shown
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import ImageRecord, Oddity, Problem, Survey
    from holdfast.schema.verdicts import Severity

PROBLEMS: dict[Problem, str] = {
    "missing": "listed, but not there",
    "refused": "may not be read",
    "not-a-file": "not a file",
    "empty": "an empty file",
    "not-an-image": "not an image that can be opened",
    "truncated": "cut off",
    "broken": "damaged",
    "too-small": "under 10 pixels wide or high",
    "too-many-pixels": "more pixels than Pillow, and so Ultralytics, opens",
    "reader-died": "ended the process that decoded it",
    "too-slow": "took too long to decode",
}
ODDITIES: dict[Oddity, tuple[str, str]] = {
    "extension": (
        "have another format than their name says",
        "harmless for Ultralytics, which looks into the file; other tools go by the name",
    ),
    "cmyk": ("are CMYK", "their colours are converted while they are read: look at one of them in train_batch0.jpg"),
    "16-bit": (
        "have more than 8 bits a pixel",
        "they are read as 8 bits: dark ones come out black; convert them yourself, with the range that matters",
    ),
    "tail": (
        "are JPEGs that go on after their end",
        "Ultralytics rewrites such files in place, at another quality, the first time it reads them: keep a copy",
    ),
    "not-decoded": ("are so large that only the header was read", "open one of them by hand"),
    "not-scanned": ("were not looked at: there is no plugin for their format", "convert them to JPEG or PNG"),
}
TOO_MANY = 0.5
"""Of the images of a split: with so few left the training is not the one that was planned."""


def judge(survey: Survey, rule: str) -> Judged:
    if not survey.decoded:
        return Judged("no image was decoded: this Python has no Pillow (pip install pillow)")
    bad = [image for image in survey.images if image.seen.problem is not None]
    formats = sorted({image.seen.format for image in survey.images if image.seen.format})
    kinds = f" ({', '.join(formats)})" if formats else ""
    message = f"{looked_at(survey)}{kinds}, " + ("all readable" if not bad else f"{len(bad):,} of them not usable")
    findings = [finding for finding in (_unusable(survey, bad, rule), _odd(survey, rule)) if finding is not None]
    return Judged(message, tuple(findings))


def _unusable(survey: Survey, bad: list[ImageRecord], rule: str) -> Finding | None:
    if not bad:
        return None
    by_problem: dict[Problem, list[ImageRecord]] = defaultdict(list)
    for image in bad:
        if image.seen.problem is not None:
            by_problem[image.seen.problem].append(image)
    evidence = []
    for problem, images in sorted(by_problem.items(), key=lambda item: -len(item[1])):
        named = [
            shown(image.path, survey.root) + (f" ({shown(image.seen.detail)})" if image.seen.detail else "")
            for image in images[:3]
        ]
        more = f" and {len(images) - 3:,} more" if len(images) > 3 else ""
        evidence.append(f"{PROBLEMS[problem]}: {len(images):,}: {', '.join(named)}{more}")
    worst: Severity = "warn"
    lost = ""
    for split in ("train", "val"):
        there, gone = len(survey.split(split)), sum(image.split == split for image in bad)
        if there and gone >= TOO_MANY * there:
            worst, lost = "fatal", f": {share(gone, there)} of {split}"
            break
    return Finding(
        rule=rule,
        severity=worst,
        message=f"{many(len(bad), 'image')} cannot be trained on{lost}. Ultralytics leaves such images out, or stops at one "
        "in the middle of an epoch.",
        evidence=evidence,
        remedies=[
            "fetch these files again, or remove them and their labels; then delete the *.cache files beside the labels"
        ],
    )


def _odd(survey: Survey, rule: str) -> Finding | None:
    by_oddity: dict[Oddity, list[str]] = defaultdict(list)
    for image in survey.images:
        for oddity in image.seen.oddities:
            by_oddity[oddity].append(image.path)
    if not by_oddity:
        return None
    ordered = sorted(by_oddity.items(), key=lambda item: -len(item[1]))
    return Finding(
        rule=rule,
        severity="note",
        message="Some images are unusual: "
        + ", ".join(f"{len(paths):,} {ODDITIES[oddity][0]}" for oddity, paths in ordered)
        + ".",
        evidence=[f"{ODDITIES[oddity][0]}: {examples(paths, survey.root)}" for oddity, paths in ordered],
        remedies=[ODDITIES[oddity][1] for oddity, _ in ordered],
    )
