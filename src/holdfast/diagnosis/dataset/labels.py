"""Does every image have a label file, and is every line of it usable?"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import (
    CheckResult,
    describe_coverage,
    format_count,
    format_examples,
    format_path,
    format_percent,
)
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import ImageRecord, LineFault, Survey
    from holdfast.schema.verdicts import Severity

FAULTS: dict[LineFault, str] = {
    "unparsable": "a value that is not a finite number",
    "columns": "a wrong number of columns",
    "mixed": "boxes and polygons in one file",
    "class-range": "a class that is not in the dataset's list of classes",
    "class-fraction": "a class that is not an integer",
    "outside": "coordinates outside of 0 to 1",
    "sticks-out": "a box that extends beyond the edge of the image",
    "degenerate": "a box without area",
    "duplicate": "a duplicate line",
}
DROPS_IMAGE: tuple[LineFault, ...] = (
    "unparsable",
    "columns",
    "mixed",
    "class-range",
    "class-fraction",
    "outside",
)
"""If a file contains one such line, training drops the image with all of its labels."""
MAX_DROPPED = 0.5
MAX_MISSING = 0.2


def judge(survey: Survey, rule: str) -> CheckResult:
    labelled = sum(image.seen.label == "there" for image in survey.images)
    objects = sum(len(image.seen.classes) for image in survey.images)
    background = len(survey.images) - labelled
    message = f"{format_count(objects, 'object')} on {labelled:,} of {describe_coverage(survey)}" + (
        f", {background:,} without labels" if background else ""
    )
    findings = [
        *_check_any_labels(survey, rule),
        *_check_unusable_lines(survey, rule),
        *_check_minor_faults(survey, rule),
        *_check_missing_files(survey, rule),
        *_check_stray_files(survey, rule),
    ]
    return CheckResult(message, tuple(findings))


def _check_any_labels(survey: Survey, rule: str) -> list[Finding]:
    """Report a split without any labels: without training labels there is nothing to learn, without validation labels every
    metric is 0.
    """
    found = []
    for split, effect in (
        ("train", "there is nothing to learn"),
        ("val", "every metric will be 0, no matter how good the model is"),
    ):
        images = survey.split(split)
        if not images or any(image.seen.label == "there" for image in images):
            continue
        states = Counter(image.seen.label for image in images)
        found.append(
            Finding(
                rule=rule,
                severity="fatal",
                message=f"None of the {format_count(len(images), 'image')} in {split} has a label: {effect}.",
                evidence=[
                    f"label files of {split}: " + ", ".join(f"{count:,} {state}" for state, count in states.items())
                ],
                remedies=[
                    "check where labels are expected: the path of the image, with its last `images` replaced by `labels`, and .txt",
                    "check the paths in the YAML file of the dataset",
                ],
            )
        )
    return found


def _check_unusable_lines(survey: Survey, rule: str) -> list[Finding]:
    wrong = [image for image in survey.images if is_dropped(image)]
    if not wrong:
        return []
    severity: Severity = "warn"
    dropped_share = ""
    for split in ("train", "val"):
        images, dropped = survey.split(split), sum(image.split == split for image in wrong)
        if images and dropped >= MAX_DROPPED * len(images):
            severity, dropped_share = "fatal", f" ({format_percent(dropped, len(images))} of {split})"
            break
    return [
        Finding(
            rule=rule,
            severity=severity,
            message=f"{format_count(len(wrong), 'image')}{dropped_share} {'has' if len(wrong) == 1 else 'have'} an unusable label line: "
            "training drops the whole image, with all of its labels.",
            evidence=_format_faults(survey, wrong, DROPS_IMAGE),
            remedies=[*_suggest_fixes(survey, wrong), "then delete the *.cache files next to the labels"],
        )
    ]


def is_dropped(image: ImageRecord) -> bool:
    """Return whether training drops the image because of its labels."""
    return image.seen.label in ("unreadable", "too-large") or any(fault in image.seen.faults for fault in DROPS_IMAGE)


def _check_minor_faults(survey: Survey, rule: str) -> list[Finding]:
    """Report faults that affect single lines only: training clips or drops these lines."""
    small: tuple[LineFault, ...] = ("degenerate", "duplicate", "sticks-out")
    counts: Counter[LineFault] = Counter()
    for image in survey.images:
        counts.update({fault: image.seen.faults.get(fault, 0) for fault in small})
    if not any(counts.values()):
        return []
    objects = sum(len(image.seen.classes) for image in survey.images)
    lines = counts["degenerate"] + counts["duplicate"]
    is_many = lines >= 0.01 * max(objects, 1) and lines >= 5
    return [
        Finding(
            rule=rule,
            severity="warn" if is_many else "note",
            message="Some label lines are dropped or changed: "
            + ", ".join(f"{counts[fault]:,} with {FAULTS[fault]}" for fault in small if counts[fault])
            + ". Training drops boxes without area and duplicate lines, and clips boxes that extend "
            "beyond the image.",
            evidence=_format_faults(survey, list(survey.images), small),
            remedies=["inspect a few of them: a tool that exports such lines often makes other mistakes too"],
        )
    ]


def _check_missing_files(survey: Survey, rule: str) -> list[Finding]:
    """Report images without a label file. They count as background; many of them suggest a mistake."""
    found = []
    for split in ("train", "val"):
        images = survey.split(split)
        without = [image.path for image in images if image.seen.label == "missing"]
        empty = sum(image.seen.label == "empty" for image in images)
        if not without or len(without) == len(images):
            continue
        is_many = len(without) >= MAX_MISSING * len(images)
        found.append(
            Finding(
                rule=rule,
                severity="warn" if is_many else "note",
                message=f"{format_count(len(without), 'image')} of {split} ({format_percent(len(without), len(images))}) "
                f"{'has' if len(without) == 1 else 'have'} no label file and "
                f"{'counts' if len(without) == 1 else 'count'} as background.",
                evidence=[
                    f"without a label file: {format_examples(without, survey.root)}",
                    f"with an empty label file, which marks background explicitly: {empty:,}",
                ],
                remedies=[
                    "keep images that show no object; for images whose labels were lost, restore the labels or remove them"
                ],
            )
        )
    return found


def _check_stray_files(survey: Survey, rule: str) -> list[Finding]:
    if not survey.stray_labels:
        return []
    return [
        Finding(
            rule=rule,
            severity="note" if survey.stray_labels < MAX_MISSING * survey.total else "warn",
            message=f"{format_count(survey.stray_labels, 'label file')} {'has' if survey.stray_labels == 1 else 'have'} no matching "
            "image and will not be used.",
            evidence=[", ".join(format_path(path, survey.root) for path in survey.stray_examples)],
            remedies=["check whether images are missing, or have another name or extension"],
        )
    ]


def _format_faults(survey: Survey, images: list[ImageRecord], faults: tuple[LineFault, ...]) -> list[str]:
    counts: Counter[LineFault] = Counter()
    places: dict[LineFault, list[str]] = defaultdict(list)
    for image in images:
        for fault, count in image.seen.faults.items():
            counts[fault] += count
        for note in image.seen.notes:
            if len(places[note.fault]) < 3:
                places[note.fault].append(
                    f"{format_path(image.path, survey.root)}, line {note.line} of its labels: {format_path(note.text)}"
                )
    lines = [
        f"{FAULTS[fault]}: {format_count(counts[fault], 'line')}: {'; '.join(places[fault])}"
        for fault in sorted(faults, key=lambda fault: -counts[fault])
        if counts[fault]
    ]
    for state, why in (("unreadable", "not readable text"), ("too-large", "larger than 8 MB")):
        files = [image.path for image in images if image.seen.label == state]
        if files and faults is DROPS_IMAGE:
            lines.append(f"the label file is {why}: {len(files):,}: {format_examples(files, survey.root)}")
    return lines


def _suggest_fixes(survey: Survey, wrong: list[ImageRecord]) -> list[str]:
    faults = {fault for image in wrong for fault in image.seen.faults}
    fixes = []
    if "class-range" in faults:
        used = {kind for image in survey.images for kind in image.seen.classes}
        count = len(survey.names)
        shifted = used and min(used) == 1 and max(used) == count
        fixes.append(
            f"the classes in the labels are 1 to {count}, but training counts from 0: subtract 1 from each"
            if shifted
            else f"the YAML file lists {format_count(count, 'class', 'classes')}, 0 to {count - 1}, but the labels go up to "
            f"{max(used, default=0)}: add the missing names, or fix the labels"
        )
    if "outside" in faults:
        fixes.append(
            "coordinates are fractions of the width and height of the image (0 to 1), and x and y are the centre of the box: "
            "divide pixel values by the width and height"
        )
    if faults & {"columns", "mixed", "unparsable"}:
        fixes.append(
            "write each line as `class x y width height`, or all lines of a file as polygons: `class x1 y1 x2 y2 x3 y3 ...`"
        )
    return fixes or ["fix these lines, or remove the images"]
