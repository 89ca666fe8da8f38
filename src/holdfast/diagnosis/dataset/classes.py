"""How often does each class occur in training and in validation?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import CheckResult, class_name, format_count, format_first, make_result
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
    listing = ", ".join(f"{class_name(survey, kind)} {count:,}" for kind, count in train.most_common(MAX_NAMED))
    more = " …" if len(train) > MAX_NAMED else ""
    return make_result(
        rule,
        f"{format_count(len(named), 'class', 'classes')} in train: {listing}{more}",
        _check_untrained(survey, train, val),
        _check_balance(survey, train, val, named),
    )


def count_objects(survey: Survey, split: str) -> Counter[int]:
    """Count the objects by class, in the images that training uses."""
    used = (image for image in survey.split(split) if image.seen.problem is None and not is_dropped(image))
    return Counter(kind for image in used for kind in image.seen.classes)


def _check_untrained(survey: Survey, train: Counter[int], val: Counter[int]) -> Finding | None:
    """Report the classes that occur in validation but never in training."""
    untrained = sorted(kind for kind in val if not train[kind])
    if not untrained:
        return None
    do, their = ("does", "its") if len(untrained) == 1 else ("do", "their")
    return Finding(
        severity="warn",
        message=f"{format_count(len(untrained), 'class', 'classes')} in validation {do} not occur in training: {their} score stays 0, and "
        f"mAP, the mean over {len(val)}, cannot exceed {1 - len(untrained) / len(val):.2f}.",
        evidence=[f"{class_name(survey, kind)}: 0 in train, {val[kind]:,} in val" for kind in untrained[:MAX_NAMED]],
        remedies=["move images of these classes into training, for example with a stratified split"],
    )


def _check_balance(survey: Survey, train: Counter[int], val: Counter[int], named: list[int]) -> Finding | None:
    absent = [kind for kind in named if not train[kind] and not val[kind]]
    rare = [kind for kind in named if 0 < train[kind] < MIN_TRAINED]
    (most, highest), (least, lowest) = train.most_common(1)[0], min(train.items(), key=lambda item: item[1])
    uneven = highest >= MAX_IMBALANCE * lowest
    unmeasured = [kind for kind in named if train[kind] and val[kind] < MIN_MEASURED] if val else []
    parts, evidence = [], []
    if absent:
        parts.append(f"{len(absent):,} of {format_count(len(named), 'class', 'classes')} never occur")
        names = format_first(absent, lambda kind: class_name(survey, kind), MAX_NAMED)
        evidence.append(f"in the list of classes, but without any object: {names}")
    if rare:
        evidence.append(f"fewer than {MIN_TRAINED} objects in train: {_format_counts(survey, rare, train)}")
    if uneven:
        parts.append("the classes are very imbalanced")
        evidence.append(
            f"{class_name(survey, most)} occurs {highest:,} times, {class_name(survey, least)} {lowest:,} times: "
            f"{highest / lowest:,.0f} to 1"
        )
    elif rare:
        parts.append(f"{format_count(len(rare), 'class is', 'classes are')} rare")
    if unmeasured:
        parts.append(f"{format_count(len(unmeasured), 'class has', 'classes have')} too few objects in validation")
        counts = _format_counts(survey, unmeasured, val)
        evidence.append(f"fewer than {MIN_MEASURED} objects in val, so that the score depends on chance: {counts}")
    if not parts:
        return None
    message = ", ".join(parts) + "."
    return Finding(
        severity="warn" if rare or uneven else "note",
        message=message[0].upper() + message[1:],
        evidence=evidence,
        remedies=[
            "collect more images of the rare classes, or repeat their images in the training list",
            "check the AP of each class: the mean hides a class that is never detected",
        ],
    )


def _format_counts(survey: Survey, kinds: list[int], counts: Counter[int]) -> str:
    return ", ".join(f"{class_name(survey, kind)} {counts[kind]}" for kind in kinds[:MAX_NAMED])
