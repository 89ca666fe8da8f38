"""Remedies that change the batch size, with the same update if possible, or the learning rate, only if necessary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, all_or_nothing, remedy_step

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

MAX_ACCUMULATED = 4
MAX_HALVINGS = 3
"""If an eighth of the learning rate does not help, the learning rate is not the reason."""
NOISE = "the results differ: a smaller effective batch makes updates noisier"
SLOWER = "slower: more and smaller batches; batch normalization uses fewer images at a time"


def split(batch: int, effective: int) -> tuple[int, int]:
    """Return a smaller batch, and the number of such batches per update.

    Of the sizes between a quarter and a half of the batch, choose the one that gets closest to the effective batch; of several,
    the largest. A divisor matches it exactly.
    """
    smallest = max(batch // 4, 2) if batch >= 4 else 1
    sizes = range(smallest, batch // 2 + 1)
    pairs = [(size, max(round(effective / size), 1)) for size in sizes]
    return min(pairs, key=lambda pair: (abs(pair[0] * pair[1] - effective), -pair[0]))


def _shrink_batch(context: RemedyContext, min_batch: int) -> Remedy | None:
    batch, times = context.batch, context.settings.get("accumulation")
    if batch is None or batch // 2 < min_batch:
        return None
    accumulates = context.can_set("accumulation")
    before = batch * int(times or 1)
    smaller, more = split(batch, before) if accumulates else (batch // 2, int(times or 1))
    after = smaller * more
    changes = [context.change("batch", smaller, why="fewer samples are in memory at once", costs=SLOWER)]
    if accumulates:
        why = f"the effective batch stays {after}" if after == before else describe_change(before, after)
        changes.append(context.change("accumulation", more, why=why))
    parts = (f"{more} x {smaller}", f"{times or 1} x {batch}") if accumulates else (f"{smaller}", f"{batch}")
    description = f"Using a smaller micro-batch: {parts[0]} instead of {parts[1]}; "
    if after == before:
        return all_or_nothing(f"{description}the effective batch stays {after}.", *changes)
    rate, sentence = scale_rate(context, after / before)
    description += describe_change(before, after)
    if not accumulates:
        description += (
            ", because this command has no known flag for gradient accumulation (a plan can define one in `flags`)"
        )
    return all_or_nothing(f"{description}. {sentence}", *changes, *rate)


def describe_change(before: int, after: int) -> str:
    return f"the effective batch changes from {before} to {after}"


@remedy_step(SLOWER)
def micro_batch(context: RemedyContext) -> Remedy | None:
    """Halve the micro-batch (the images that are processed at once) and double the gradient accumulation. This can be repeated
    until the micro-batch is 2. The effective batch size (the images per weight update) stays the same. If it cannot be kept,
    for example because a command has no flag for accumulation, the learning rate is scaled in proportion, and the report says
    so.
    """
    return _shrink_batch(context, 2)


@remedy_step("slower; models with batch normalization become less accurate")
def batch_of_one(context: RemedyContext) -> Remedy | None:
    """Reduce the micro-batch to a single image. This comes late in the list because batch normalization then uses only one
    image at a time.
    """
    return _shrink_batch(context, 1)


@remedy_step(NOISE)
def accumulate_less(context: RemedyContext) -> Remedy | None:
    """On MPS, accumulate gradients over at most 4 batches. The learning rate is scaled in proportion, and the report states
    the new effective batch size. This comes late in the list: some users reported fewer crashes with it, but accumulation was
    never shown to be the cause.
    """
    times = int(context.settings.get("accumulation") or 1)
    if context.device != "mps" or context.batch is None or times <= MAX_ACCUMULATED:
        return None
    full, less = times * context.batch, MAX_ACCUMULATED * context.batch
    change = context.change("accumulation", MAX_ACCUMULATED, why=describe_change(full, less), costs=NOISE)
    return accumulate_fewer(context, full, less, change)


def accumulate_fewer(context: RemedyContext, full: int, less: int, *changes: Change | None) -> Remedy | None:
    """Return a remedy with these changes of the effective batch, and the learning rate in proportion."""
    rate, sentence = scale_rate(context, less / full)
    return all_or_nothing(
        f"Accumulating at most {MAX_ACCUMULATED} batches per update: {describe_change(full, less)}. {sentence} Some users reported fewer "
        "crashes on Apple's GPU this way, although accumulation was never shown to be the cause.",
        *changes,
        *rate,
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


def scale_rate(context: RemedyContext, factor: float) -> tuple[list[Change | None], str]:
    """Return the changes that scale the learning rate with the effective batch, if it is known, and a sentence about them."""
    why = f"in proportion to the effective batch: x {factor:.4g}"
    found = change_rate(context, factor, why=why, costs="the results differ")
    if found is None:
        return [], "The learning rate is unknown and stays the same: adjust it to the smaller batch if you can."
    changes, before, after = found
    return changes, f"The learning rate is scaled with it, from {before:g} to {after:g}."


def change_rate(
    context: RemedyContext, factor: float, *, why: str, costs: str
) -> tuple[list[Change | None], float, float] | None:
    """Return the changes that multiply the learning rate by `factor`, and the rate before and after."""
    rate, fixed = context.framework.learning_rate(context)
    if not rate:
        return None
    # This rounding is far too small to affect the result, and the result is easier to read on a command line.
    after = float(f"{rate * factor:.6g}")
    return [*fixed, context.change("lr0", after, why=why, costs=costs)], rate, after


@remedy_step("the results differ: the model learns more slowly")
def half_rate(context: RemedyContext) -> Remedy | None:
    """Halve the learning rate. This can be repeated, at most three times for a finding. If the framework chooses the optimizer
    itself (`optimizer=auto`) and ignores the learning rate that is set, the optimizer that it chose is set explicitly as well.
    """
    halved = [tried for tried in context.tried if tried.cause == context.cause and context.sets("lr0", tried.changes)]
    why, costs = (
        "a learning rate that is too high is the usual reason",
        "the results differ: the model learns more slowly",
    )
    found = change_rate(context, 0.5, why=why, costs=costs)
    if found is None or len(halved) >= MAX_HALVINGS:
        return None
    changes, before, after = found
    return all_or_nothing(
        f"Halving the learning rate from {before:g} to {after:g}: this differs from what you configured.", *changes
    )
