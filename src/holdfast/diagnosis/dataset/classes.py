"""How often does each class occur in training and in validation?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import CheckResult, class_name, format_count
from holdfast.diagnosis.dataset.labels import is_dropped
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import Survey

MIN_TRAINED = 20
"""Objects of a class in training: with fewer, its score depends on chance."""
MAX_IMBALANCE = 100.0
"""The ratio of the most frequent class to the rarest."""
MIN_MEASURED = 5
"""Objects of a class in validation: with fewer, one object changes its score by a fifth or more."""
MAX_NAMED = 8


def judge(survey: Survey, rule: str) -> CheckResult:
    train, val = count_objects(survey, "train"), count_objects(survey, "val")
    named = sorted(survey.names) or sorted({*train, *val})
    if not train:
        return CheckResult("no objects in train")
    listing = " ".join(f"{class_name(survey, kind)} {count:,}," for kind, count in train.most_common(MAX_NAMED))
    message = f"{format_count(len(named), 'class', 'classes')} in train: {listing.rstrip(',')}" + (
        " …" if len(train) > MAX_NAMED else ""
    )
    return CheckResult(
        message, (*_check_untrained(survey, train, val, rule), *_check_balance(survey, train, val, named, rule))
    )


def count_objects(survey: Survey, split: str) -> Counter[int]:
    """Count the objects by class, in the images that training uses."""
    found: Counter[int] = Counter()
    for image in survey.split(split):
        if image.seen.problem is None and not is_dropped(image):
            found.update(image.seen.classes)
    return found


def _check_untrained(survey: Survey, train: Counter[int], val: Counter[int], rule: str) -> list[Finding]:
    """Report the classes that occur in validation but never in training."""
    untrained = sorted(kind for kind in val if not train[kind])
    if not untrained:
        return []
    total = len([kind for kind in val if val[kind]])
    return [
        Finding(
            rule=rule,
            severity="warn",
            message=f"{format_count(len(untrained), 'class', 'classes')} in validation {'does' if len(untrained) == 1 else 'do'} not occur in "
            f"training: {'its' if len(untrained) == 1 else 'their'} score stays 0, and mAP, the mean over {total}, cannot exceed "
            f"{1 - len(untrained) / total:.2f}.",
            evidence=[
                f"{class_name(survey, kind)}: 0 in train, {val[kind]:,} in val" for kind in untrained[:MAX_NAMED]
            ],
            remedies=["move images of these classes into training, for example with a stratified split"],
        )
    ]


def _check_balance(
    survey: Survey, train: Counter[int], val: Counter[int], named: list[int], rule: str
) -> list[Finding]:
    absent = [kind for kind in named if not train[kind] and not val[kind]]
    rare = [kind for kind in named if 0 < train[kind] < MIN_TRAINED]
    most = max(train, key=lambda kind: train[kind])
    least = min((kind for kind in train if train[kind]), key=lambda kind: train[kind])
    uneven = train[most] >= MAX_IMBALANCE * train[least]
    unmeasured = [kind for kind in named if train[kind] and val[kind] < MIN_MEASURED] if val else []
    if not (absent or rare or uneven or unmeasured):
        return []
    evidence = []
    if absent:
        evidence.append(f"in the list of classes, but without any object: {_format_names(survey, absent)}")
    if rare:
        evidence.append(
            f"fewer than {MIN_TRAINED} objects in train: "
            + ", ".join(f"{class_name(survey, kind)} {train[kind]}" for kind in rare[:MAX_NAMED])
        )
    if uneven:
        evidence.append(
            f"{class_name(survey, most)} occurs {train[most]:,} times, {class_name(survey, least)} {train[least]:,} times: "
            f"{train[most] / train[least]:,.0f} to 1"
        )
    if unmeasured:
        evidence.append(
            f"fewer than {MIN_MEASURED} objects in val, so that the score depends on chance: "
            + ", ".join(f"{class_name(survey, kind)} {val[kind]}" for kind in unmeasured[:MAX_NAMED])
        )
    parts = []
    if absent:
        parts.append(f"{len(absent):,} of {format_count(len(named), 'class', 'classes')} never occur")
    if rare or uneven:
        parts.append(
            "the classes are very imbalanced"
            if uneven
            else f"{format_count(len(rare), 'class is', 'classes are')} rare"
        )
    if unmeasured:
        parts.append(f"{format_count(len(unmeasured), 'class has', 'classes have')} too few objects in validation")
    message = ", ".join(parts) + "."
    return [
        Finding(
            rule=rule,
            severity="warn" if rare or uneven else "note",
            message=message[0].upper() + message[1:],
            evidence=evidence,
            remedies=[
                "collect more images of the rare classes, or repeat their images in the training list",
                "check the AP of each class: the mean hides a class that is never detected",
            ],
        )
    ]


def _format_names(survey: Survey, kinds: list[int]) -> str:
    named = ", ".join(class_name(survey, kind) for kind in kinds[:MAX_NAMED])
    return named + (f" and {len(kinds) - MAX_NAMED:,} more" if len(kinds) > MAX_NAMED else "")
