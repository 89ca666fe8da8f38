"""What a line of a training's output says: where the training stands, a loss, a score. Pure text in, numbers out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from holdfast.importers.base import number, whole

# All of these look at lines in lower case, and only at lines that hold their plain word: logs are long.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w.])"
_EPOCH = re.compile(r"\bepochs?\b[\s:=#\[(]{0,4}(\d{1,7})\b(?!\.\d)(?:\s{0,2}(?:/|of)\s{0,2}(\d{1,7})\b)?")
_BAR = re.compile(r"\b\d{1,3}%[ |].{0,200}?\s(\d{1,9})/(\d{1,9})\b")
_BATCH = re.compile(r"\b(?:batch|iter|iteration|step)\b[\s:=#\[(]{0,4}(\d{1,9})\s{0,2}(?:/|of)\s{0,2}(\d{1,9})\b")
_STEP = re.compile(r"\b(?:global[_ ])?(?:step|iter|iteration)s?\b[\s:=#\[(]{0,4}(\d{1,9})\b(?!\.\d)")
_LOSS = re.compile(rf"loss((?:[_/][a-z]{{1,20}})?)\b['\"]?\s{{0,3}}[:=]?\s{{0,3}}(?:tensor\()?({_NUMBER})")
_BEFORE_LOSS = re.compile(r"(?:\b[a-z]{1,20}[ _/.-]){0,2}$")
_SCORE = re.compile(
    r"(?P<name>(?:\b(?:train|training|val|valid|validation|test|eval)[ _/.-])?"
    r"\b(?:accuracy|acc|top1|top5|f1|auc|miou|iou|dice|precision|recall|map(?:50(?:-95)?)?))"
    rf"\b['\"]?\s{{0,3}}[:=]\s{{0,3}}(?P<value>{_NUMBER})"
)
_SCORE_WORDS = ("acc", "top", "f1", "auc", "iou", "dice", "precision", "recall", "map")
_MASKED = re.compile(r"""['"]loss['"]: ['"]?0(?:\.0*)?['"]?, ['"]grad_norm['"]: ['"]?nan""")
"""Transformers hides a loss that is NaN behind a 0 (`logging_nan_inf_filter`); the gradient gives it away."""
_FINISHED = re.compile(
    r"^\s*\d+ epochs? completed in [\d.]+ hours|`?Trainer\.fit`? stopped: `?max_(?:epochs|steps)=|'train_runtime':"
    r"|^\s*training (?:is )?(?:complete|completed|finished|done)\b|^EarlyStopping: Training stopped early|Signaling Trainer to stop",
    re.IGNORECASE,
)
_FILLERS = frozenset(
    ("the", "average", "avg", "mean", "current", "final", "total", "step", "epoch", "batch", "running", "with")
)


@dataclass
class ParsedLine:
    epoch: int | None = None
    epochs: int | None = None
    batch: int | None = None
    batches: int | None = None
    step: int | None = None
    losses: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    by_trainer: bool = False
    """A dictionary as Transformers prints it: it belongs to the step that the bar stands at."""

    @property
    def anything(self) -> bool:
        return self.epoch is not None or self.batch is not None or self.step is not None or bool(self.losses)


def parse_line(line: str) -> ParsedLine | None:
    """None where the line says nothing of this."""
    lower, said = line.lower(), ParsedLine()
    if "epoch" in lower and (epoch := _EPOCH.search(lower)):
        said.epoch, said.epochs = whole(epoch[1]), whole(epoch[2])
    _place(lower, said)
    if "loss" in lower:
        _losses(lower, said)
    if any(word in lower for word in _SCORE_WORDS):
        for found in _SCORE.finditer(lower):
            value = number(found["value"])
            if value is not None:
                said.scores.setdefault(found["name"].replace(" ", "_"), value)
    return said if said.anything else None


def _place(lower: str, said: ParsedLine) -> None:
    counted = "batch" in lower or "iter" in lower or "step" in lower
    place = (_BATCH.search(lower) if counted else None) or (_BAR.search(lower) if "%" in lower else None)
    if place is not None:
        said.batch, said.batches = whole(place[1]), whole(place[2])
    elif counted and (step := _STEP.search(lower)):
        said.step = whole(step[1])


def _losses(lower: str, said: ParsedLine) -> None:
    for found in _LOSS.finditer(lower):
        before = _BEFORE_LOSS.search(lower[max(0, found.start() - 42) : found.start()])
        value = number(found[2])
        if value is not None and before is not None and (before[0] or not lower[: found.start()][-1:].isalnum()):
            said.losses.setdefault(_loss_name(f"{before[0]}loss{found[1]}"), value)
    said.by_trainer = lower.lstrip().startswith(("{'loss'", '{"loss"'))
    if said.by_trainer and _MASKED.search(lower):
        said.losses["loss"] = math.nan


def says_finished(line: str) -> bool:
    return _FINISHED.search(line) is not None


def _loss_name(name: str) -> str:
    """`train loss` and `Train/Loss` are one name; `step 5 loss` is no name of its own."""
    words = [word for word in re.split(r"[ _/.-]+", name.lower()) if word not in _FILLERS]
    if not words or words == ["loss"]:
        return "loss"
    if words[0] in ("train", "training", "val", "valid", "validation", "eval", "test") and len(words) > 1:
        return f"{words[0]}_{'_'.join(words[1:])}"
    return "_".join(words)
