"""Remedies that change the batch size: fewer samples in memory at once, with the same update if possible."""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING

from holdfast.remedies.effective_batch import Update, halve, limit_accumulation, split
from holdfast.remedies.learning_rate import scale_rate
from holdfast.remedies.step import Remedy, RemedyStep, all_or_nothing

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

NBS = 64
"""The default of Ultralytics."""
MAX_ACCUMULATED = 4
_SLOWER = "slower: more and smaller batches; batch normalization uses fewer images at a time"


def get_update(context: RemedyContext) -> Update | None:
    """Return the settings of one Ultralytics weight update; None if the batch is unknown."""
    nbs, decay = context.number("nbs"), context.number("weight_decay")
    if context.batch is None:
        return None
    return Update(context.batch, int(nbs or NBS), float(decay) if decay is not None else nan)


def _micro_batch(context: RemedyContext, min_batch: int, id_: str) -> Remedy | None:
    if context.batch is None or context.batch // 2 < min_batch:
        return None
    return _shrink_ultralytics_batch(context, id_) if context.ultralytics else _shrink_command_batch(context, id_)


def _shrink_ultralytics_batch(context: RemedyContext, id_: str) -> Remedy | None:
    before = get_update(context)
    assert before is not None
    after = halve(before)
    if after.nbs != before.nbs and isnan(after.decay):
        return None
    same = after.effective == before.effective
    why = (
        f"the effective batch stays {after.effective}" if same else _describe_change(before.effective, after.effective)
    )
    changes = [context.change("batch", after.batch, why="fewer samples are in memory at once", costs=_SLOWER)]
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
        return all_or_nothing(id_, description, *changes)
    rate, sentence = scale_rate(context, after.effective / before.effective)
    return all_or_nothing(id_, f"{description} {sentence}", *changes, *rate)


def _keep_decay(context: RemedyContext, before: Update, after: Update) -> list[Change | None]:
    if after.weight_decay == before.weight_decay:
        return []
    why = "Ultralytics scales weight decay by nbs: the effective decay stays the same"
    return [context.change("weight_decay", after.weight_decay, why=why)]


def _shrink_command_batch(context: RemedyContext, id_: str) -> Remedy | None:
    batch, times = context.batch, context.settings.get("accumulation")
    assert batch is not None
    accumulates = context.can_set("accumulation")
    before = batch * int(times or 1)
    smaller, more = split(batch, before) if accumulates else (batch // 2, int(times or 1))
    after = smaller * more
    changes = [context.change("batch", smaller, why="fewer samples are in memory at once", costs=_SLOWER)]
    if accumulates:
        why = f"the effective batch stays {after}" if after == before else _describe_change(before, after)
        changes.append(context.change("accumulation", more, why=why))
    parts = (f"{more} x {smaller}", f"{times or 1} x {batch}") if accumulates else (f"{smaller}", f"{batch}")
    description = f"Using a smaller micro-batch: {parts[0]} instead of {parts[1]}; "
    if after == before:
        return all_or_nothing(id_, f"{description}the effective batch stays {after}.", *changes)
    rate, sentence = scale_rate(context, after / before)
    description += _describe_change(before, after)
    description += (
        ""
        if accumulates
        else ", because this command has no known flag for gradient accumulation (a plan can define one in `flags`)"
    )
    return all_or_nothing(id_, f"{description}. {sentence}", *changes, *rate)


def _describe_change(before: int, after: int) -> str:
    return f"the effective batch changes from {before} to {after}"


MICRO_BATCH = RemedyStep(
    "micro-batch",
    "Halve the micro-batch (the images that are processed at once) and double the gradient accumulation. This can be repeated "
    "until the micro-batch is 2. The effective batch size (the images per weight update) stays the same; the Ultralytics settings "
    "`nbs` and `weight_decay` are adjusted if rounding would change the update. If the effective batch size cannot be kept, for "
    "example because a command has no flag for accumulation, the learning rate is scaled in proportion, and the report says so.",
    _SLOWER,
    lambda context: _micro_batch(context, 2, "micro-batch"),
)
BATCH_OF_ONE = RemedyStep(
    "batch-of-one",
    "Reduce the micro-batch to a single image. This comes late in the list because batch normalization then uses only one image "
    "at a time.",
    "slower; models with batch normalization become less accurate",
    lambda context: _micro_batch(context, 1, "batch-of-one"),
)


def _accumulate_less(context: RemedyContext) -> Remedy | None:
    if context.device != "mps" or context.batch is None:
        return None
    if context.ultralytics:
        before = get_update(context)
        assert before is not None
        after = limit_accumulation(before, MAX_ACCUMULATED)
        if after is before or isnan(after.decay):
            return None
        full, less = before.effective, after.effective
        changes = [
            context.change("nbs", after.nbs, why=_describe_change(full, less), costs=_NOISE),
            *_keep_decay(context, before, after),
        ]
    else:
        times = int(context.settings.get("accumulation") or 1)
        if times <= MAX_ACCUMULATED:
            return None
        full, less = times * context.batch, MAX_ACCUMULATED * context.batch
        changes = [context.change("accumulation", MAX_ACCUMULATED, why=_describe_change(full, less), costs=_NOISE)]
    rate, sentence = scale_rate(context, less / full)
    return all_or_nothing(
        "accumulate-less",
        f"Accumulating at most {MAX_ACCUMULATED} batches per update: {_describe_change(full, less)}. {sentence} Some users reported fewer "
        "crashes on Apple's GPU this way, although accumulation was never shown to be the cause.",
        *changes,
        *rate,
    )


_NOISE = "the results differ: a smaller effective batch makes updates noisier"
ACCUMULATE_LESS = RemedyStep(
    "accumulate-less",
    "On MPS, accumulate gradients over at most 4 batches. The learning rate is scaled in proportion, and the report states the new "
    "effective batch size. This comes late in the list: some users reported fewer crashes with it, but accumulation was never "
    "shown to be the cause.",
    _NOISE,
    _accumulate_less,
)


def restore_accumulation(context: RemedyContext) -> list[Change | None]:
    """Return changes that undo `accumulate-less`, for a device that does not need it."""
    before: dict[str, object] = {}
    for tried in reversed(context.tried):  # the oldest last, so that the original values win
        changes = {context.get_name(change.setting): change for change in tried.changes}
        less = changes.get("nbs") or changes.get("accumulation")
        if less is not None and "batch" not in changes and less.after < less.before:
            before |= {name: change.before for name, change in changes.items()}
    return [context.change(name, value, why="restores the full effective batch") for name, value in before.items()]
