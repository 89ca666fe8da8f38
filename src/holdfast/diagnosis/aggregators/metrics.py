"""The results of validations, in order."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.schema.events import as_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.schema import events

MAX_VALIDATIONS = 2048
"""Validations of one training. If there are more, every second one is dropped."""


class Point(NamedTuple):
    epoch: int
    """The epoch reported by the framework, or else the number of the validation."""
    value: float
    step: int = 0


class Track:
    """One metric over all validations that report it."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.zeros = 0
        self.highest: int | None = None
        """The indexes of the highest and the lowest finite value; the first of equal ones."""
        self.lowest: int | None = None

    def add(self, point: Point) -> None:
        self.points.append(point)
        if not math.isfinite(point.value):
            return
        self.zeros += point.value == 0.0
        here = len(self.points) - 1
        if self.highest is None or point.value > self.points[self.highest].value:
            self.highest = here
        if self.lowest is None or point.value < self.points[self.lowest].value:
            self.lowest = here

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points]

    @property
    def all_zero(self) -> bool:
        return bool(self.points) and self.zeros == len(self.points)


class Metrics:
    def __init__(self) -> None:
        self.history: list[events.Metrics] = []
        """Validations during the training, oldest first. If one process runs several trainings, those of the newest."""
        self.tracks: dict[str, Track] = {}
        """The same by metric."""
        self.final: events.Metrics | None = None
        """The final validation of the best checkpoint, if the trainer does one."""
        self.epochs_not_finite = 0
        """Number of consecutive epochs, up to the newest, with a training loss that is not finite."""
        self.epochs_of_zero_loss = 0
        """Number of epochs, from the first one, whose training losses are all exactly zero."""

    @property
    def latest(self) -> events.Metrics | None:
        return self.final or (self.history[-1] if self.history else None)

    def fold(self, event: events.Metrics) -> None:
        before = self.history[-1].epoch if self.history else None
        if event.epoch is None and before is not None:
            self.final = event
            return
        if event.epoch is not None and before is not None and event.epoch < before:
            self._reset([])
        elif len(self.history) >= MAX_VALIDATIONS:
            self._reset(self.history[::2])
        self._append(event)

    def _reset(self, kept: list[events.Metrics]) -> None:
        self.history, self.tracks, self.final = [], {}, None
        self.epochs_not_finite = self.epochs_of_zero_loss = 0
        for event in kept:
            self._append(event)

    def _append(self, event: events.Metrics) -> None:
        self.history.append(event)
        losses = [as_number(raw) for name, raw in event.values.items() if is_training_loss(name)]
        nonfinite = any(loss is not None and not math.isfinite(loss) for loss in losses)
        self.epochs_not_finite = self.epochs_not_finite + 1 if nonfinite else 0
        if losses and not any(losses) and self.epochs_of_zero_loss == len(self.history) - 1:
            self.epochs_of_zero_loss += 1
        for name, raw in event.values.items():
            value = as_number(raw)
            if value is not None:
                self.tracks.setdefault(name, Track()).add(Point(event.epoch or len(self.history), value, event.step))

    @property
    def counts_epochs(self) -> bool:
        """Whether the points have epochs of the training, which continue after a restart. Validation numbers restart."""
        return bool(self.history) and self.history[-1].epoch is not None

    def names(self) -> list[str]:
        return list(self.history[-1].values) if self.history else []

    def scores(self) -> list[str]:
        """Return the metrics that are better when higher. The metric that selects the best checkpoint comes first."""
        return sorted(filter(is_score, self.names()), key=_rank)

    def series(self, name: str) -> list[Point]:
        """Return one metric over all validations that report it."""
        track = self.tracks.get(name)
        return track.points if track is not None else []


def over_attempts(several: Sequence[Metrics], name: str) -> Track:
    """Return one metric over all attempts of a run. Results that a later attempt repeated replace the earlier ones."""
    if len(several) == 1:
        return several[0].tracks.get(name) or Track()
    points: list[Point] = []
    for metrics in several:
        again = metrics.series(name)
        if again and metrics.counts_epochs:
            points = [point for point in points if point.epoch < again[0].epoch] + again
        elif again:
            kept = [point for point in points if point.step < again[0].step]
            points = kept + [point._replace(epoch=len(kept) + n) for n, point in enumerate(again, 1)]
    track = Track()
    for point in points:
        track.add(point)
    return track


def merge_histories(several: Sequence[Metrics]) -> list[events.Metrics]:
    """Return the validations of all attempts of a run, merged like `over_attempts`."""
    history: list[events.Metrics] = []
    for metrics in several:
        if metrics.history:
            first = metrics.history[0]
            history = [earlier for earlier in history if _is_before(earlier, first)] + metrics.history
    return history


def _is_before(earlier: events.Metrics, again: events.Metrics) -> bool:
    if again.epoch is None or earlier.epoch is None:
        return earlier.step < again.step
    return earlier.epoch < again.epoch


def newest_of(several: Sequence[Metrics]) -> Metrics | None:
    """Return the metrics of the newest attempt that had a validation."""
    return next((metrics for metrics in reversed(several) if metrics.history), None)


class Best(NamedTuple):
    """The best validation of a run."""

    name: str
    epoch: int
    value: float
    since: int
    """Number of validations since then."""
    higher_is_better: bool


def best_of(several: Sequence[Metrics]) -> Best | None:
    """Return the best validation by the score that selects the best checkpoint, or else by the validation loss; or None."""
    newest = newest_of(several)
    if newest is None:
        return None
    score = next((name for name in newest.scores() if is_known_score(name)), None)
    if score is not None:
        track = over_attempts(several, score)
        index = None if track.all_zero else track.highest
    else:
        score = next(iter(sorted(filter(is_validation_loss, newest.names()), key=len)), None)
        track = over_attempts(several, score) if score is not None else Track()
        index = track.lowest
    if score is None or index is None:
        return None
    point = track.points[index]
    return Best(score, point.epoch, point.value, len(track.points) - 1 - index, not is_loss(score))


def is_loss(name: str) -> bool:
    return "loss" in name.lower()


def is_validation_loss(name: str) -> bool:
    return is_loss(name) and _words(name)[0] in ("val", "valid", "validation", "eval", "test", "dev")


def is_training_loss(name: str) -> bool:
    return is_loss(name) and not is_validation_loss(name)


def is_train(name: str) -> bool:
    return _words(name)[0] in ("train", "training")


NOT_A_SCORE = re.compile(
    "lr|learning|time|epoch|step|steps|speed|runtime|second|seconds|flos|flops|memory|norm|batch|images|objects|error|"
    "err|mae|mse|rmse|mape|perplexity|ppl|wer|cer|fid|kid|lpips|nll|bpb|bpc|distance|divergence|kl|regret|ece|eer|brier|entropy"
)
"""Words in the names of metrics that do not measure quality, or that are better when lower."""


def is_score(name: str) -> bool:
    """Return whether a metric is better when higher, judging by its name."""
    return not is_loss(name) and not is_train(name) and not any(map(NOT_A_SCORE.fullmatch, _words(name)))


SELECTION_METRICS = ("fitness", "map50-95", "map", "f1", "accuracy", "acc")
SCORES = ("precision", "recall", "auc", "auroc", "dice", "iou", "miou", "bleu", "rouge", "r2", "psnr", "ssim", "score")


def is_known_score(name: str) -> bool:
    """Return whether the name clearly denotes a score."""
    return is_score(name) and (_rank(name) < len(SELECTION_METRICS) or not set(SCORES).isdisjoint(_words(name)))


def _rank(name: str) -> int:
    return next((rank for rank, word in enumerate(SELECTION_METRICS) if word in name.lower()), len(SELECTION_METRICS))


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", name.lower())
