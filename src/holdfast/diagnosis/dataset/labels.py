"""Is there a label file for every image, and can every line of it be used?"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import Judged, examples, looked_at, many, share, shown
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import ImageRecord, LineFault, Survey
    from holdfast.schema.verdicts import Severity

FAULTS: dict[LineFault, str] = {
    "unparsable": "no number, or not a finite one",
    "columns": "a wrong number of columns",
    "mixed": "boxes and polygons in one file",
    "class-range": "a class that the data set does not name",
    "class-fraction": "a class that is no whole number",
    "outside": "coordinates outside of 0 to 1",
    "sticks-out": "a box that reaches over the image's edge",
    "degenerate": "a box without area",
    "duplicate": "the same line twice",
}
COSTS_THE_IMAGE: tuple[LineFault, ...] = (
    "unparsable",
    "columns",
    "mixed",
    "class-range",
    "class-fraction",
    "outside",
)
"""One such line, and Ultralytics leaves out the image with all of its labels."""
TOO_MANY = 0.5
MANY_MISSING = 0.2


def judge(survey: Survey, rule: str) -> Judged:
    labelled = sum(image.seen.label == "there" for image in survey.images)
    objects = sum(len(image.seen.classes) for image in survey.images)
    background = len(survey.images) - labelled
    message = f"{many(objects, 'object')} on {labelled:,} of {looked_at(survey)}" + (
        f", {background:,} without any" if background else ""
    )
    findings = [
        *_none_at_all(survey, rule),
        *_wrong_lines(survey, rule),
        *_small_faults(survey, rule),
        *_missing(survey, rule),
        *_strays(survey, rule),
    ]
    return Judged(message, tuple(findings))


def _none_at_all(survey: Survey, rule: str) -> list[Finding]:
    """Without training labels there is nothing to learn; without validation labels every metric is 0."""
    found = []
    for split, means in (
        ("train", "there is nothing to learn"),
        ("val", "every metric will be 0, whatever the model does"),
    ):
        images = survey.split(split)
        if not images or any(image.seen.label == "there" for image in images):
            continue
        states = Counter(image.seen.label for image in images)
        found.append(
            Finding(
                rule=rule,
                severity="fatal",
                message=f"Not one of the {many(len(images), 'image')} of {split} has a label: {means}.",
                evidence=[
                    f"label files of {split}: " + ", ".join(f"{count:,} {state}" for state, count in states.items())
                ],
                remedies=[
                    "look where labels are expected: the image's path with its last `images` replaced by `labels`, and .txt",
                    "check the paths in the data set's yaml",
                ],
            )
        )
    return found


def _wrong_lines(survey: Survey, rule: str) -> list[Finding]:
    wrong = [image for image in survey.images if lost(image)]
    if not wrong:
        return []
    severity: Severity = "warn"
    lost_of = ""
    for split in ("train", "val"):
        there, gone = survey.split(split), sum(image.split == split for image in wrong)
        if there and gone >= TOO_MANY * len(there):
            severity, lost_of = "fatal", f" ({share(gone, len(there))} of {split})"
            break
    return [
        Finding(
            rule=rule,
            severity=severity,
            message=f"{many(len(wrong), 'image')}{lost_of} {'has' if len(wrong) == 1 else 'have'} a label line that cannot be "
            "used: Ultralytics leaves out the whole image, with all of its labels.",
            evidence=_by_fault(survey, wrong, COSTS_THE_IMAGE),
            remedies=[*_answers(survey, wrong), "then delete the *.cache files beside the labels"],
        )
    ]


def lost(image: ImageRecord) -> bool:
    """Whether Ultralytics leaves the image out because of its labels."""
    return image.seen.label in ("unreadable", "too-large") or any(
        fault in image.seen.faults for fault in COSTS_THE_IMAGE
    )


def _small_faults(survey: Survey, rule: str) -> list[Finding]:
    """What is clipped or left out line by line."""
    small: tuple[LineFault, ...] = ("degenerate", "duplicate", "sticks-out")
    counts: Counter[LineFault] = Counter()
    for image in survey.images:
        counts.update({fault: image.seen.faults.get(fault, 0) for fault in small})
    if not any(counts.values()):
        return []
    objects = sum(len(image.seen.classes) for image in survey.images)
    lines = counts["degenerate"] + counts["duplicate"]
    many_of_them = lines >= 0.01 * max(objects, 1) and lines >= 5
    return [
        Finding(
            rule=rule,
            severity="warn" if many_of_them else "note",
            message="Some label lines are of no use or are changed: "
            + ", ".join(f"{counts[fault]:,} with {FAULTS[fault]}" for fault in small if counts[fault])
            + ". Ultralytics drops the first two kinds while it trains and clips the last.",
            evidence=_by_fault(survey, list(survey.images), small),
            remedies=["look at a few of them: a tool that exports such lines often has other things wrong"],
        )
    ]


def _missing(survey: Survey, rule: str) -> list[Finding]:
    """An image without labels is background, and fine; so many that it looks like a mistake are not."""
    found = []
    for split in ("train", "val"):
        images = survey.split(split)
        without = [image.path for image in images if image.seen.label == "missing"]
        empty = sum(image.seen.label == "empty" for image in images)
        if not without or len(without) == len(images):
            continue
        often = len(without) >= MANY_MISSING * len(images)
        found.append(
            Finding(
                rule=rule,
                severity="warn" if often else "note",
                message=f"{many(len(without), 'image')} of {split} ({share(len(without), len(images))}) "
                f"{'has' if len(without) == 1 else 'have'} no label file: "
                f"{'it teaches' if len(without) == 1 else 'they teach'} that there is nothing to see.",
                evidence=[
                    f"without a file: {examples(without, survey.root)}",
                    f"with an empty file, which says the same on purpose: {empty:,}",
                ],
                remedies=[
                    "where an image shows no object, keep it; where its labels were lost, bring them back or remove it"
                ],
            )
        )
    return found


def _strays(survey: Survey, rule: str) -> list[Finding]:
    if not survey.stray_labels:
        return []
    return [
        Finding(
            rule=rule,
            severity="note" if survey.stray_labels < MANY_MISSING * survey.total else "warn",
            message=f"{many(survey.stray_labels, 'label file')} {'belongs' if survey.stray_labels == 1 else 'belong'} to no "
            "image: nothing is learned from them.",
            evidence=[", ".join(shown(path, survey.root) for path in survey.stray_examples)],
            remedies=["see whether images are missing, or have another name or extension"],
        )
    ]


def _by_fault(survey: Survey, images: list[ImageRecord], faults: tuple[LineFault, ...]) -> list[str]:
    counts: Counter[LineFault] = Counter()
    places: dict[LineFault, list[str]] = defaultdict(list)
    for image in images:
        for fault, count in image.seen.faults.items():
            counts[fault] += count
        for note in image.seen.notes:
            if len(places[note.fault]) < 3:
                places[note.fault].append(
                    f"{shown(image.path, survey.root)}, line {note.line} of its labels: {shown(note.text)}"
                )
    said = [
        f"{FAULTS[fault]}: {many(counts[fault], 'line')}: {'; '.join(places[fault])}"
        for fault in sorted(faults, key=lambda fault: -counts[fault])
        if counts[fault]
    ]
    for state, why in (("unreadable", "no readable text"), ("too-large", "over 8 MB")):
        files = [image.path for image in images if image.seen.label == state]
        if files and faults is COSTS_THE_IMAGE:
            said.append(f"label file is {why}: {len(files):,}: {examples(files, survey.root)}")
    return said


def _answers(survey: Survey, wrong: list[ImageRecord]) -> list[str]:
    faults = {fault for image in wrong for fault in image.seen.faults}
    said = []
    if "class-range" in faults:
        used = {kind for image in survey.images for kind in image.seen.classes}
        count = len(survey.names)
        shifted = used and min(used) == 1 and max(used) == count
        said.append(
            f"the classes in the labels are 1 to {count}: Ultralytics counts from 0, so take 1 off each"
            if shifted
            else f"the yaml names {many(count, 'class', 'classes')}, 0 to {count - 1}; the labels go up to {max(used, default=0)}: add names, or mend the labels"
        )
    if "outside" in faults:
        said.append(
            "coordinates are shares of the image's width and height (0 to 1), centre first; pixels must be divided"
        )
    if faults & {"columns", "mixed", "unparsable"}:
        said.append(
            "a line is `class x y width height`, or `class x1 y1 x2 y2 x3 y3 ...` for polygons in all lines of a file"
        )
    return said or ["mend these lines, or remove the images"]
