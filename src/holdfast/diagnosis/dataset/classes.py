"""How often is each class shown, in training and in validation?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset.common import Judged, class_name, many
from holdfast.diagnosis.dataset.labels import is_dropped
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from holdfast.schema.images import Survey

FEW = 20
"""Objects of a class in training: with fewer its score is luck."""
UNEVEN = 100.0
"""Times that the most frequent class is shown as often as the rarest."""
FEW_MEASURED = 5
"""Objects of a class in validation: with fewer, one object moves its score by a fifth or more."""
MAX_NAMED = 8


def judge(survey: Survey, rule: str) -> Judged:
    train, val = counts(survey, "train"), counts(survey, "val")
    named = sorted(survey.names) or sorted({*train, *val})
    if not train:
        return Judged("no object in train")
    often = " ".join(f"{class_name(survey, kind)} {count:,}," for kind, count in train.most_common(MAX_NAMED))
    message = f"{many(len(named), 'class', 'classes')} in train: {often.rstrip(',')}" + (
        " …" if len(train) > MAX_NAMED else ""
    )
    return Judged(message, (*_never_learned(survey, train, val, rule), *_rare(survey, train, val, named, rule)))


def counts(survey: Survey, split: str) -> Counter[int]:
    """Objects by class, of those images that Ultralytics trains on."""
    found: Counter[int] = Counter()
    for image in survey.split(split):
        if image.seen.problem is None and not is_dropped(image):
            found.update(image.seen.classes)
    return found


def _never_learned(survey: Survey, train: Counter[int], val: Counter[int], rule: str) -> list[Finding]:
    """Classes that validation asks for and training never shows."""
    asked = sorted(kind for kind in val if not train[kind])
    if not asked:
        return []
    total = len([kind for kind in val if val[kind]])
    return [
        Finding(
            rule=rule,
            severity="warn",
            message=f"{many(len(asked), 'class', 'classes')} in validation {'is' if len(asked) == 1 else 'are'} never shown in "
            f"training: {'its' if len(asked) == 1 else 'their'} score stays 0, and mAP, the mean over {total}, cannot pass "
            f"{1 - len(asked) / total:.2f}.",
            evidence=[f"{class_name(survey, kind)}: 0 in train, {val[kind]:,} in val" for kind in asked[:MAX_NAMED]],
            remedies=["bring images of these classes into training: a split that keeps the classes' shares does that"],
        )
    ]


def _rare(survey: Survey, train: Counter[int], val: Counter[int], named: list[int], rule: str) -> list[Finding]:
    absent = [kind for kind in named if not train[kind] and not val[kind]]
    rare = [kind for kind in named if 0 < train[kind] < FEW]
    most = max(train, key=lambda kind: train[kind])
    least = min((kind for kind in train if train[kind]), key=lambda kind: train[kind])
    uneven = train[most] >= UNEVEN * train[least]
    unmeasured = [kind for kind in named if train[kind] and val[kind] < FEW_MEASURED] if val else []
    if not (absent or rare or uneven or unmeasured):
        return []
    evidence = []
    if absent:
        evidence.append(f"named, but shown nowhere: {_names(survey, absent)}")
    if rare:
        evidence.append(
            f"under {FEW} objects in train: "
            + ", ".join(f"{class_name(survey, kind)} {train[kind]}" for kind in rare[:MAX_NAMED])
        )
    if uneven:
        evidence.append(
            f"{class_name(survey, most)} is shown {train[most]:,} times, {class_name(survey, least)} {train[least]:,} times: "
            f"{train[most] / train[least]:,.0f} to 1"
        )
    if unmeasured:
        evidence.append(
            f"under {FEW_MEASURED} objects in val, so that the score is luck: "
            + ", ".join(f"{class_name(survey, kind)} {val[kind]}" for kind in unmeasured[:MAX_NAMED])
        )
    parts = []
    if absent:
        parts.append(f"{len(absent):,} of {many(len(named), 'class', 'classes')} never occur")
    if rare or uneven:
        parts.append(
            "classes are shown very unevenly"
            if uneven
            else f"{many(len(rare), 'class is', 'classes are')} shown rarely"
        )
    if unmeasured:
        parts.append(f"{many(len(unmeasured), 'class is', 'classes are')} hardly measured in validation")
    message = ", ".join(parts) + "."
    return [
        Finding(
            rule=rule,
            severity="warn" if rare or uneven else "note",
            message=message[0].upper() + message[1:],
            evidence=evidence,
            remedies=[
                "collect more of the rare classes, or repeat their images in the training list",
                "read each class's own AP: the mean hides a class that is never found",
            ],
        )
    ]


def _names(survey: Survey, kinds: list[int]) -> str:
    named = ", ".join(class_name(survey, kind) for kind in kinds[:MAX_NAMED])
    return named + (f" and {len(kinds) - MAX_NAMED:,} more" if len(kinds) > MAX_NAMED else "")
