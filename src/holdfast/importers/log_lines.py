"""Parsing of a line of training output: position, losses, scores."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from holdfast.importers.base import parse_float, parse_int

# All of these match lines in lower case, and only lines that contain their keyword: logs are long.
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
"""Transformers logs a NaN loss as 0 (`logging_nan_inf_filter`); the gradient norm reveals it."""
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
    is_trainer_dict: bool = False
    """A dictionary as Transformers prints it: it belongs to the current step of the progress bar."""

    @property
    def has_content(self) -> bool:
        return self.epoch is not None or self.batch is not None or self.step is not None or bool(self.losses)


def parse_line(line: str) -> ParsedLine | None:
    """Parse a line. Return None if it has no position and no loss."""
    lower, parsed = line.lower(), ParsedLine()
    if "epoch" in lower and (epoch := _EPOCH.search(lower)):
        parsed.epoch, parsed.epochs = parse_int(epoch[1]), parse_int(epoch[2])
    _parse_position(lower, parsed)
    if "loss" in lower:
        _parse_losses(lower, parsed)
    if any(word in lower for word in _SCORE_WORDS):
        for found in _SCORE.finditer(lower):
            value = parse_float(found["value"])
            if value is not None:
                parsed.scores.setdefault(found["name"].replace(" ", "_"), value)
    return parsed if parsed.has_content else None


def _parse_position(lower: str, parsed: ParsedLine) -> None:
    has_count = "batch" in lower or "iter" in lower or "step" in lower
    position = (_BATCH.search(lower) if has_count else None) or (_BAR.search(lower) if "%" in lower else None)
    if position is not None:
        parsed.batch, parsed.batches = parse_int(position[1]), parse_int(position[2])
    elif has_count and (step := _STEP.search(lower)):
        parsed.step = parse_int(step[1])


def _parse_losses(lower: str, parsed: ParsedLine) -> None:
    for found in _LOSS.finditer(lower):
        before = _BEFORE_LOSS.search(lower[max(0, found.start() - 42) : found.start()])
        value = parse_float(found[2])
        if value is not None and before is not None and (before[0] or not lower[: found.start()][-1:].isalnum()):
            parsed.losses.setdefault(_loss_name(f"{before[0]}loss{found[1]}"), value)
    parsed.is_trainer_dict = lower.lstrip().startswith(("{'loss'", '{"loss"'))
    if parsed.is_trainer_dict and _MASKED.search(lower):
        parsed.losses["loss"] = math.nan


def is_finish_line(line: str) -> bool:
    return _FINISHED.search(line) is not None


def _loss_name(name: str) -> str:
    """Normalize a loss name: `train loss` and `Train/Loss` are the same name; `step 5 loss` is just `loss`."""
    words = [word for word in re.split(r"[ _/.-]+", name.lower()) if word not in _FILLERS]
    if not words or words == ["loss"]:
        return "loss"
    if words[0] in ("train", "training", "val", "valid", "validation", "eval", "test") and len(words) > 1:
        return f"{words[0]}_{'_'.join(words[1:])}"
    return "_".join(words)
