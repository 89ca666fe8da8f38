"""Does every image have a label file, and is every line of it usable?"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import (
    CheckResult,
    describe_coverage,
    find_lost_split,
    format_count,
    format_examples,
    format_path,
    format_percent,
    make_result,
)
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import ImageRecord, LineFault, Survey

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
DROPS_LINE: tuple[LineFault, ...] = ("degenerate", "duplicate", "sticks-out")
"""Training drops or changes only such a line."""
DROPS_IMAGE = tuple(fault for fault in FAULTS if fault not in DROPS_LINE)
"""If a file contains one such line, training drops the image with all of its labels."""
MAX_DROPPED = 0.5
MAX_MISSING = 0.2


def judge(survey: Survey, rule: str) -> CheckResult:
    labelled = sum(image.seen.label == "there" for image in survey.images)
    objects = sum(len(image.seen.classes) for image in survey.images)
    background = len(survey.images) - labelled
    without = f", {background:,} without labels" if background else ""
    return make_result(
        rule,
        f"{format_count(objects, 'object')} on {labelled:,} of {describe_coverage(survey)}{without}",
        _check_any_labels(survey, "train", "there is nothing to learn"),
        _check_any_labels(survey, "val", "every metric will be 0, no matter how good the model is"),
        _check_unusable_lines(survey),
        _check_minor_faults(survey),
        _check_missing_files(survey, "train"),
        _check_missing_files(survey, "val"),
        _check_stray_files(survey),
    )


def _check_any_labels(survey: Survey, split: str, effect: str) -> Finding | None:
    images = survey.split(split)
    states = Counter(image.seen.label for image in images)
    if not images or states["there"]:
        return None
    return Finding(
        severity="fatal",
        message=f"None of the {format_count(len(images), 'image')} in {split} has a label: {effect}.",
        evidence=[f"label files of {split}: " + ", ".join(f"{count:,} {state}" for state, count in states.items())],
        remedies=[
            "check where labels are expected: the path of the image, with its last `images` replaced by `labels`, and .txt",
            "check the paths in the YAML file of the dataset",
        ],
    )


def _check_unusable_lines(survey: Survey) -> Finding | None:
    wrong = [image for image in survey.images if is_dropped(image)]
    if not wrong:
        return None
    lost = find_lost_split(survey, wrong, MAX_DROPPED)
    share = f" ({lost[1]} of {lost[0]})" if lost is not None else ""
    return Finding(
        severity="fatal" if lost is not None else "warn",
        message=f"{format_count(len(wrong), 'image')}{share} {'has' if len(wrong) == 1 else 'have'} an unusable label line: "
        "training drops the whole image, with all of its labels.",
        evidence=_format_faults(survey, wrong, DROPS_IMAGE),
        remedies=[*_suggest_fixes(survey, wrong), "then delete the *.cache files next to the labels"],
    )


def is_dropped(image: ImageRecord) -> bool:
    """Return whether training drops the image because of its labels."""
    return image.seen.label in ("unreadable", "too-large") or any(fault in image.seen.faults for fault in DROPS_IMAGE)


def _check_minor_faults(survey: Survey) -> Finding | None:
    """Report faults that affect single lines only: training clips or drops these lines."""
    counts = {fault: sum(image.seen.faults.get(fault, 0) for image in survey.images) for fault in DROPS_LINE}
    if not any(counts.values()):
        return None
    objects = sum(len(image.seen.classes) for image in survey.images)
    lines = counts["degenerate"] + counts["duplicate"]
    is_many = lines >= 0.01 * max(objects, 1) and lines >= 5
    kinds = ", ".join(f"{count:,} with {FAULTS[fault]}" for fault, count in counts.items() if count)
    return Finding(
        severity="warn" if is_many else "note",
        message=f"Some label lines are dropped or changed: {kinds}. Training drops boxes without area and duplicate lines, and clips "
        "boxes that extend beyond the image.",
        evidence=_format_faults(survey, list(survey.images), DROPS_LINE),
        remedies=["inspect a few of them: a tool that exports such lines often makes other mistakes too"],
    )


def _check_missing_files(survey: Survey, split: str) -> Finding | None:
    """Report images without a label file. They count as background; many of them suggest a mistake."""
    images = survey.split(split)
    without = [image.path for image in images if image.seen.label == "missing"]
    empty = sum(image.seen.label == "empty" for image in images)
    if not without or len(without) == len(images):
        return None
    have, count = ("has", "counts") if len(without) == 1 else ("have", "count")
    return Finding(
        severity="warn" if len(without) >= MAX_MISSING * len(images) else "note",
        message=f"{format_count(len(without), 'image')} of {split} ({format_percent(len(without), len(images))}) {have} no label file and "
        f"{count} as background.",
        evidence=[
            f"without a label file: {format_examples(without, survey.root)}",
            f"with an empty label file, which marks background explicitly: {empty:,}",
        ],
        remedies=[
            "keep images that show no object; for images whose labels were lost, restore the labels or remove them"
        ],
    )


def _check_stray_files(survey: Survey) -> Finding | None:
    if not survey.stray_labels:
        return None
    return Finding(
        severity="note" if survey.stray_labels < MAX_MISSING * survey.total else "warn",
        message=f"{format_count(survey.stray_labels, 'label file has', 'label files have')} no matching image and will not be used.",
        evidence=[", ".join(format_path(path, survey.root) for path in survey.stray_examples)],
        remedies=["check whether images are missing, or have another name or extension"],
    )


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
