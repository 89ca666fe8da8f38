"""Rungs about the batch: less of it in memory at once, and the same update where that can be had."""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING

from holdfast.remedies.effective_batch import Update, at_most, halve, split
from holdfast.remedies.learning_rate import scaled_rate
from holdfast.remedies.step import Remedy, RemedyStep, whole_remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

NBS = 64
"""Ultralytics' own, where nobody set another."""
MAX_ACCUMULATED = 4
_SLOWER = "time: more and smaller batches, and batch normalisation sees fewer images at a time"


def update_of(now: RemedyContext) -> Update | None:
    """What Ultralytics makes an update of; None where the batch is not known."""
    nbs, decay = now.number("nbs"), now.number("weight_decay")
    if now.batch is None:
        return None
    return Update(now.batch, int(nbs or NBS), float(decay) if decay is not None else nan)


def _micro_batch(now: RemedyContext, least: int, id_: str) -> Remedy | None:
    if now.batch is None or now.batch // 2 < least:
        return None
    return _of_ultralytics(now, id_) if now.ultralytics else _of_command(now, id_)


def _of_ultralytics(now: RemedyContext, id_: str) -> Remedy | None:
    before = update_of(now)
    assert before is not None
    after = halve(before)
    if after.nbs != before.nbs and isnan(after.decay):
        return None
    same = after.effective == before.effective
    why = f"the effective batch stays {after.effective}" if same else _changed(before.effective, after.effective)
    changes = [now.change("batch", after.batch, why="less is held in memory at once", costs=_SLOWER)]
    if after.nbs != before.nbs:
        changes.append(now.change("nbs", after.nbs, why=f"Ultralytics accumulates {after.accumulate} batches: {why}"))
        changes += _same_decay(now, before, after)
    description = f"A smaller micro-batch: {after.accumulate} batches of {after.batch} make an update, {before.accumulate} of {before.batch} did; {why}."
    if same:
        return whole_remedy(id_, description, *changes)
    rate, said = scaled_rate(now, after.effective / before.effective)
    return whole_remedy(id_, f"{description} {said}", *changes, *rate)


def _same_decay(now: RemedyContext, before: Update, after: Update) -> list[Change | None]:
    if after.weight_decay == before.weight_decay:
        return []
    why = "Ultralytics scales it by nbs: the decay stays the same"
    return [now.change("weight_decay", after.weight_decay, why=why)]


def _of_command(now: RemedyContext, id_: str) -> Remedy | None:
    batch, times = now.batch, now.settings.get("accumulation")
    assert batch is not None
    accumulates = now.can_set("accumulation")
    before = batch * int(times or 1)
    smaller, more = split(batch, before) if accumulates else (batch // 2, int(times or 1))
    after = smaller * more
    changes = [now.change("batch", smaller, why="less is held in memory at once", costs=_SLOWER)]
    if accumulates:
        why = f"the effective batch stays {after}" if after == before else _changed(before, after)
        changes.append(now.change("accumulation", more, why=why))
    parts = (f"{more} x {smaller}", f"{times or 1} x {batch}") if accumulates else (f"{smaller}", f"{batch}")
    description = f"A smaller micro-batch: {parts[0]} in place of {parts[1]}; "
    if after == before:
        return whole_remedy(id_, f"{description}the effective batch stays {after}.", *changes)
    rate, said = scaled_rate(now, after / before)
    description += _changed(before, after)
    description += (
        ""
        if accumulates
        else ", as this command has no flag for accumulation that is known (a plan can name it: flags)"
    )
    return whole_remedy(id_, f"{description}. {said}", *changes, *rate)


def _changed(before: int, after: int) -> str:
    return f"the effective batch changes from {before} to {after}"


MICRO_BATCH = RemedyStep(
    "micro-batch",
    'Half the micro-batch with twice the accumulation ("micro-batch" mode), again and again down to 2. The effective batch stays the '
    "same: Ultralytics' `nbs` and `weight_decay` are changed with it where rounding would change the update. Where it cannot "
    "be kept (a command without a flag for accumulation), the learning rate is scaled in proportion, and it says so.",
    _SLOWER,
    lambda now: _micro_batch(now, 2, "micro-batch"),
)
BATCH_OF_ONE = RemedyStep(
    "batch-of-one",
    "The same once more, down to one image at a time: late, as batch normalisation then sees a single image.",
    "time, and accuracy where batch normalisation matters",
    lambda now: _micro_batch(now, 1, "batch-of-one"),
)


def _accumulate_less(now: RemedyContext) -> Remedy | None:
    if now.device != "mps" or now.batch is None:
        return None
    if now.ultralytics:
        before = update_of(now)
        assert before is not None
        after = at_most(before, MAX_ACCUMULATED)
        if after is before or isnan(after.decay):
            return None
        whole, less = before.effective, after.effective
        changes = [
            now.change("nbs", after.nbs, why=_changed(whole, less), costs=_NOISE),
            *_same_decay(now, before, after),
        ]
    else:
        times = int(now.settings.get("accumulation") or 1)
        if times <= MAX_ACCUMULATED:
            return None
        whole, less = times * now.batch, MAX_ACCUMULATED * now.batch
        changes = [now.change("accumulation", MAX_ACCUMULATED, why=_changed(whole, less), costs=_NOISE)]
    rate, said = scaled_rate(now, less / whole)
    return whole_remedy(
        "accumulate-less",
        f"At most {MAX_ACCUMULATED} batches an update: {_changed(whole, less)}. {said} Some met fewer crashes on Apple's GPU that "
        "way; accumulation was never shown to be their cause.",
        *changes,
        *rate,
    )


_NOISE = "another training: noisier updates of a smaller effective batch"
ACCUMULATE_LESS = RemedyStep(
    "accumulate-less",
    'At most 4 batches an update on MPS ("safer MPS mode"), with the changed effective batch stated and the learning rate scaled in '
    "proportion. Late, since the cause that was reported for it turned out to be another.",
    _NOISE,
    _accumulate_less,
)


def accumulated_as_before(now: RemedyContext) -> list[Change | None]:
    """What `accumulate-less` took away, given back: for a device that never needed it."""
    before: dict[str, object] = {}
    for tried in reversed(now.tried):  # the oldest last: what it was at first
        changes = {now.named(change.setting): change for change in tried.changes}
        less = changes.get("nbs") or changes.get("accumulation")
        if less is not None and "batch" not in changes and less.after < less.before:
            before |= {name: change.before for name, change in changes.items()}
    return [now.change(name, value, why="the full effective batch again") for name, value in before.items()]
