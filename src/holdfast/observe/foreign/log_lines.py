"""What a line of a training's output says: where the training stands, a loss, a score. Pure text in, numbers out."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from holdfast.observe.foreign.reading import number, whole

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w.])"
_EPOCH = re.compile(
    r"\bepochs?\b[\s:=#\[(]{0,4}(\d{1,7})\b(?!\.\d)(?:\s{0,2}(?:/|of)\s{0,2}(\d{1,7})\b)?", re.IGNORECASE
)
_BAR = re.compile(r"\b\d{1,3}%[ |].{0,200}?\s(\d{1,9})/(\d{1,9})\b")
_BATCH = re.compile(
    r"\b(?:batch|iter|iteration|it|step)\b[\s:=#\[(]{0,4}(\d{1,9})\s{0,2}(?:/|of)\s{0,2}(\d{1,9})\b", re.IGNORECASE
)
_STEP = re.compile(r"\b(?:global[_ ])?(?:step|iter|iteration)s?\b[\s:=#\[(]{0,4}(\d{1,9})\b(?!\.\d)", re.IGNORECASE)
_LOSS = re.compile(
    rf"(?P<name>\b(?:[a-z]{{1,20}}[ _/.-])?(?:[a-z]{{1,20}}[ _/.-])?loss(?:[_/][a-z]{{1,20}})?\b)['\"]?\s{{0,3}}[:=]?\s{{0,3}}"
    rf"(?:tensor\()?(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
_SCORE = re.compile(
    rf"(?P<name>\b(?:(?:train|training|val|valid|validation|test|eval)[ _/.-])?(?:accuracy|acc|top1|top5|f1|auc|miou|iou|dice|precision|recall|map(?:50(?:-95)?)?))"
    rf"\b['\"]?\s{{0,3}}[:=]\s{{0,3}}(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
_MASKED = re.compile(r"""['"]loss['"]: ['"]?0(?:\.0*)?['"]?, ['"]grad_norm['"]: ['"]?nan""")
"""Transformers hides a loss that is NaN behind a 0 (`logging_nan_inf_filter`); the gradient gives it away."""
_HINTS = re.compile(
    r"epoch|loss|batch|iter|step|%\||% \||%\s+[━╸|#]|acc|map|recall|precision|f1|auc|iou|dice", re.IGNORECASE
)
_FINISHED = re.compile(
    r"^\s*\d+ epochs? completed in [\d.]+ hours|`?Trainer\.fit`? stopped: `?max_(?:epochs|steps)=|'train_runtime':"
    r"|^\s*training (?:is )?(?:complete|completed|finished|done)\b|^EarlyStopping: Training stopped early|Signaling Trainer to stop",
    re.IGNORECASE,
)
_FILLERS = frozenset(
    ("the", "average", "avg", "mean", "current", "final", "total", "step", "epoch", "batch", "running", "with")
)


@dataclass
class Said:
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


def said_by(line: str) -> Said | None:
    """None where the line says nothing of this."""
    if not _HINTS.search(line):
        return None
    said = Said()
    if epoch := _EPOCH.search(line):
        said.epoch, said.epochs = whole(epoch[1]), whole(epoch[2])
    if batch := _BATCH.search(line) or _BAR.search(line):
        said.batch, said.batches = whole(batch[1]), whole(batch[2])
    elif step := _STEP.search(line):
        said.step = whole(step[1])
    for found in _LOSS.finditer(line):
        value = number(found["value"])
        if value is not None:
            said.losses.setdefault(_loss_name(found["name"]), value)
    said.by_trainer = line.lstrip().startswith(("{'loss'", '{"loss"'))
    if said.by_trainer and _MASKED.search(line):
        said.losses["loss"] = math.nan
    for found in _SCORE.finditer(line):
        value = number(found["value"])
        if value is not None:
            said.scores.setdefault(found["name"].replace(" ", "_"), value)
    return said if said.anything else None


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
