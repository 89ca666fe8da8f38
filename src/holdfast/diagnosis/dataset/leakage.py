"""How many validation images are known from training?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import (
    CheckResult,
    describe_coverage,
    format_count,
    format_first,
    format_path,
    format_percent,
    make_result,
)
from holdfast.diagnosis.dataset.groups import group_images
from holdfast.diagnosis.dataset.splitting import propose_split
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.diagnosis.dataset.groups import Groups, How, Twin
    from holdfast.diagnosis.dataset.splitting import Split
    from holdfast.schema.images import Survey
    from holdfast.schema.verdicts import Confidence

MIN_WARNED = 0.02
"""As a fraction of validation: fewer known images hardly change a metric."""
HOW: dict[How, str] = {
    "copy": "the same file is in train",
    "near": "a near copy is in train",
    "source": "another copy of the same image is in train, judging by its name",
    "video": "a frame of the same video is in train",
    "chain": "similar to images in train through other images",
}
HOW_TO_WRITE = "`holdfast check` with --write-split DIR writes it"


def judge(survey: Survey, rule: str, *, always_split: bool = False) -> tuple[CheckResult, Split | None]:
    """Return the leakage from training into validation, and a split that fixes it; without leakage, only if always wanted."""
    train, val = survey.split("train"), survey.split("val")
    if not train or not val:
        return CheckResult("nothing to compare: the dataset does not have both a training and a validation split"), None
    groups = group_images(survey)
    leaked = [twin for twin in groups.twins if survey.images[twin.held].split == "val"]
    leaked_test = [twin for twin in groups.twins if survey.images[twin.held].split == "test"]
    message = (
        f"{describe_coverage(survey)}: {len(leaked):,} of {len(val):,} in val ({format_percent(len(leaked), len(val))}) have a duplicate or a "
        "neighbouring frame in train"
    )
    wanted = always_split or len(leaked) >= MIN_WARNED * len(val)
    split = propose_split(survey, groups) if wanted else None
    result = make_result(
        rule,
        message,
        _check_leaks(survey, groups, leaked, leaked_test, split) if leaked or leaked_test else None,
        _check_contradictions(survey, groups),
        _check_copies(survey, groups),
    )
    return result, split


def _check_leaks(
    survey: Survey, groups: Groups, leaked: list[Twin], leaked_test: list[Twin], split: Split | None
) -> Finding:
    val, test = len(survey.split("val")), len(survey.split("test"))
    serious = len(leaked) >= MIN_WARNED * val or (test and len(leaked_test) >= MIN_WARNED * test)
    known = leaked or leaked_test
    confidence: Confidence = "proven" if any(twin.how == "copy" for twin in known) else "likely"
    message = (
        f"{format_percent(len(leaked), val)} of validation ({len(leaked):,} of {format_count(val, 'image')}) is known from training: for these "
        "images, mAP measures memorization and will be higher than on new images."
        if leaked
        else f"{len(leaked_test):,} of {format_count(test, 'image')} in test are known from training: for these images, mAP measures "
        "memorization."
    )
    evidence = [*_format_kinds(survey, leaked, "val"), *_format_kinds(survey, leaked_test, "test")]
    shared = sorted({video.name for video in groups.videos if _is_on_both_sides(survey, video.frames)})
    if shared:
        count = format_count(len(shared), "video has", "videos have")
        evidence.append(f"{count} frames in both train and val: {format_first(shared, format_path)}")
    remedies = []
    if split is not None:
        evidence.append(f"a split by group: {split.describe()}")
        remedies.append(
            f"split by group, so that all frames of a video are in the same split ({HOW_TO_WRITE}): expect a lower, but "
            "realistic mAP"
        )
    elif len(leaked) >= MIN_WARNED * val:
        remedies.append(
            "all images belong together by their appearance or names: add images from another place or day for validation"
        )
    remedies.append("remove the known images from validation: the remaining images give a realistic score")
    return Finding(
        severity="warn" if serious else "note",
        message=message,
        evidence=evidence,
        remedies=remedies,
        confidence=confidence,
    )


def _format_kinds(survey: Survey, twins: list[Twin], split: str) -> list[str]:
    counts = Counter(twin.how for twin in twins)
    lines = []
    for how, text in HOW.items():
        if not counts[how]:
            continue
        first = next(twin for twin in twins if twin.how == how)
        held, trained = (format_path(survey.images[at].path, survey.root) for at in (first.held, first.trained))
        lines.append(f"{counts[how]:,} in {split}: {text}, e.g. {held} and {trained}")
    return lines


def _is_on_both_sides(survey: Survey, frames: tuple[int, ...]) -> bool:
    return {"train", "val"} <= {survey.images[at].split for at in frames}


def _check_contradictions(survey: Survey, groups: Groups) -> Finding | None:
    if not groups.contradicting:
        return None
    return Finding(
        severity="warn",
        message=f"{format_count(len(groups.contradicting), 'image occurs', 'images occur')} twice, with different labels.",
        evidence=[
            " and ".join(format_path(survey.images[at].path, survey.root) for at in pair)
            for pair in groups.contradicting[:3]
        ],
        remedies=["keep the copy whose labels are correct, and remove the other"],
    )


def _check_copies(survey: Survey, groups: Groups) -> Finding | None:
    """Report copies within training."""
    train, copies = len(survey.split("train")), max(groups.copies, groups.near_copies)
    if copies < max(2, 0.01 * train):
        return None
    return Finding(
        severity="note",
        message=f"{format_count(copies, 'image')} in train ({format_percent(copies, train)}) are copies of others: copies weigh more and "
        "take time.",
        evidence=[
            f"the same bytes: {groups.copies:,}; the same appearance, such as re-encoded: {groups.near_copies:,}"
        ],
        remedies=["remove them, unless they should weigh more"],
    )
