"""How much of validation does the training already know?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import Judged, looked_at, many, share, shown
from holdfast.diagnosis.dataset.groups import group_images
from holdfast.diagnosis.dataset.splitting import propose
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.diagnosis.dataset.groups import Groups, How, Twin
    from holdfast.diagnosis.dataset.splitting import Split
    from holdfast.schema.images import Survey
    from holdfast.schema.verdicts import Confidence

WARN_FROM = 0.02
"""Of validation: fewer hardly move a metric."""
HOW: dict[How, str] = {
    "copy": "the same file in train",
    "near": "a near copy in train",
    "source": "another copy of the same image in train, by its name",
    "video": "a frame of the same video in train",
    "chain": "images in train that are alike by way of others",
}


WRITTEN_WITH = "holdfast check with --write-split DIR writes it"


def judge(survey: Survey, rule: str, *, always_split: bool = False) -> tuple[Judged, Split | None]:
    """What validation knows, and the split that would mend it; where nothing is to be mended, only if `always_split`."""
    train, val = survey.split("train"), survey.split("val")
    if not train or not val:
        return Judged("there is no validation beside the training to compare"), None
    groups = group_images(survey)
    leaked = [twin for twin in groups.twins if survey.images[twin.held].split == "val"]
    tested = [twin for twin in groups.twins if survey.images[twin.held].split == "test"]
    message = (
        f"{looked_at(survey)}: {len(leaked):,} of {len(val):,} in val ({share(len(leaked), len(val))}) have a twin or a "
        "neighbouring frame in train"
    )
    findings: list[Finding] = []
    split = None
    if always_split or len(leaked) >= WARN_FROM * len(val):
        split = propose(survey, groups)
    if leaked or tested:
        findings.append(_leak(survey, groups, leaked, tested, split, rule))
    findings += _within(survey, groups, rule)
    return Judged(message, tuple(findings)), split


def _leak(
    survey: Survey,
    groups: Groups,
    leaked: list[Twin],
    tested: list[Twin],
    split: Split | None,
    rule: str,
) -> Finding:
    val, test = len(survey.split("val")), len(survey.split("test"))
    serious = len(leaked) >= WARN_FROM * val or (test and len(tested) >= WARN_FROM * test)
    who = leaked or tested
    sure: Confidence = "proven" if any(twin.how == "copy" for twin in who) else "likely"
    message = (
        f"{share(len(leaked), val)} of validation ({len(leaked):,} of {many(val, 'image')}) is known from training: there mAP "
        "measures memory, and will be better than on anything new."
        if leaked
        else f"{len(tested):,} of {many(test, 'image')} of test are known from training: there mAP measures memory."
    )
    evidence = [*_kinds(survey, leaked, "val"), *_kinds(survey, tested, "test")]
    filmed = {video.name for video in groups.videos if _on_both_sides(survey, video.frames)}
    if filmed:
        evidence.append(
            f"{many(len(filmed), 'video')} {'has' if len(filmed) == 1 else 'have'} frames on both sides: "
            + ", ".join(shown(name) for name in sorted(filmed)[:3])
            + (f" and {len(filmed) - 3:,} more" if len(filmed) > 3 else "")
        )
    remedies = []
    if split is not None:
        evidence.append(f"a split by group: {split.told()}")
        remedies.append(
            f"split by group, so that frames of one video are on one side ({WRITTEN_WITH}): expect a lower mAP, and a true one"
        )
    elif len(leaked) >= WARN_FROM * val:
        remedies.append(
            "all images belong together by their looks or names: bring images of another place or day for validation"
        )
    remedies.append("take the known images out of validation: what is left is measured truly")
    return Finding(
        rule=rule,
        severity="warn" if serious else "note",
        message=message,
        evidence=evidence,
        remedies=remedies,
        confidence=sure,
    )


def _kinds(survey: Survey, twins: list[Twin], split: str) -> list[str]:
    counts = Counter(twin.how for twin in twins)
    said = []
    for how, text in HOW.items():
        if not counts[how]:
            continue
        first = next(twin for twin in twins if twin.how == how)
        held, trained = (shown(survey.images[at].path, survey.root) for at in (first.held, first.trained))
        said.append(f"{counts[how]:,} of {split}: {text}, e.g. {held} and {trained}")
    return said


def _on_both_sides(survey: Survey, frames: tuple[int, ...]) -> bool:
    return {"train", "val"} <= {survey.images[at].split for at in frames}


def _within(survey: Survey, groups: Groups, rule: str) -> list[Finding]:
    """Copies within training cost time and weigh more; copies with other labels contradict each other."""
    found = []
    train = len(survey.split("train"))
    if groups.contradicting:
        found.append(
            Finding(
                rule=rule,
                severity="warn",
                message=f"{many(len(groups.contradicting), 'image is', 'images are')} there twice with different labels.",
                evidence=[
                    " and ".join(shown(survey.images[at].path, survey.root) for at in pair)
                    for pair in groups.contradicting[:3]
                ],
                remedies=["keep the copy whose labels are right, and remove the other"],
            )
        )
    again = max(groups.copies, groups.near_copies)
    if again >= max(2, 0.01 * train):
        found.append(
            Finding(
                rule=rule,
                severity="note",
                message=f"{many(again, 'image')} of train ({share(again, train)}) {'is' if again == 1 else 'are'} a copy of another: "
                "they weigh more and take time.",
                evidence=[
                    f"the same bytes: {groups.copies:,}; the same look, such as saved again: {groups.near_copies:,}"
                ],
                remedies=["remove them, unless they are meant to weigh more"],
            )
        )
    return found
