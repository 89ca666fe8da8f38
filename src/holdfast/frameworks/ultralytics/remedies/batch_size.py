"""Remedies that change the batch size. Together with `nbs` and `weight_decay`, the update stays the same."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.effective_batch import get_update, halve, limit_accumulation
from holdfast.remedies import batch_size
from holdfast.remedies.batch_size import MAX_ACCUMULATED, NOISE, SLOWER, accumulate_fewer, describe_change, scale_rate
from holdfast.remedies.step import Remedy, all_or_nothing, remedy_step

if TYPE_CHECKING:
    from holdfast.frameworks.ultralytics.effective_batch import Update
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change


def _shrink_batch(context: RemedyContext, min_batch: int) -> Remedy | None:
    before = get_update(context.settings)
    if before is None or before.batch // 2 < min_batch:
        return None
    after = halve(before)
    if after.nbs != before.nbs and isnan(after.decay):
        return None
    same = after.effective == before.effective
    why = f"the effective batch stays {after.effective}" if same else describe_change(before.effective, after.effective)
    changes = [context.change("batch", after.batch, why="fewer samples are in memory at once", costs=SLOWER)]
    if after.nbs != before.nbs:
        changes.append(
            context.change("nbs", after.nbs, why=f"Ultralytics accumulates {after.accumulate} batches: {why}")
        )
        changes += _keep_decay(context, before, after)
    description = (
        f"Using a smaller micro-batch: {after.accumulate} batches of {after.batch} per update instead of {before.accumulate} of "
        f"{before.batch}; {why}."
    )
    if same:
        return all_or_nothing(description, *changes)
    rate, sentence = scale_rate(context, after.effective / before.effective)
    return all_or_nothing(f"{description} {sentence}", *changes, *rate)


def _keep_decay(context: RemedyContext, before: Update, after: Update) -> list[Change | None]:
    if after.weight_decay == before.weight_decay:
        return []
    why = "Ultralytics scales weight decay by nbs: the effective decay stays the same"
    return [context.change("weight_decay", after.weight_decay, why=why)]


@remedy_step(SLOWER)
def micro_batch(context: RemedyContext) -> Remedy | None:
    """With Ultralytics, `nbs` and `weight_decay` are adjusted if rounding would change the update."""
    return _shrink_batch(context, 2)


def _accumulate_less(context: RemedyContext) -> Remedy | None:
    before = get_update(context.settings)
    if context.device != "mps" or before is None:
        return None
    after = limit_accumulation(before, MAX_ACCUMULATED)
    if after is before or isnan(after.decay):
        return None
    full, less = before.effective, after.effective
    nbs = context.change("nbs", after.nbs, why=describe_change(full, less), costs=NOISE)
    return accumulate_fewer(context, full, less, nbs, *_keep_decay(context, before, after))


BATCH_OF_ONE = replace(
    batch_size.batch_of_one, remedy=lambda context: _shrink_batch(context, 1), framework="ultralytics"
)
ACCUMULATE_LESS = replace(batch_size.accumulate_less, remedy=_accumulate_less, framework="ultralytics")
