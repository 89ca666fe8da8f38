"""Remedies that change the device: use a different one if this one computes wrong results or has too little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id
from holdfast.remedies.batch_size import restore_accumulation
from holdfast.remedies.step import Remedy, remedy, remedy_step
from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
SLOWER_ON_CPU = "slower: the CPU often takes many times as long"


def _find_next_device(context: RemedyContext) -> str | None:
    """Return the next device in the plan's order that was not used before."""
    order = [device for device in context.plan.policy.devices if device != "auto"] or ["cpu"]
    named = parse_device(context.settings.get("device"))
    here = named if named.kind.name else parse_device(context.device)
    moves = [change for change in context.changes if context.get_name(change.setting) == "device"]
    used = {here, *(parse_device(device) for change in moves for device in (change.before, change.after))}
    place = next((n for n, device in enumerate(order) if parse_device(device) == here), -1)
    return next((device for device in order[place + 1 :] if parse_device(device) not in used), None)


@remedy_step(SLOWER_ON_CPU)
def next_device(context: RemedyContext) -> Remedy | None:
    """Use the next device in `[policy] devices`; if that is not set, the CPU. The full effective batch size is kept, or
    restored after `accumulate-less`. A command whose framework Holdfast does not know needs a known flag for its device; if it
    has none, Holdfast can only hide CUDA from it, so that it uses the CPU.
    """
    device = _find_next_device(context) if context.on_accelerator else None
    if device is None:
        return None
    on_accelerator = parse_device(device).kind.is_accelerator
    costs = "" if on_accelerator else SLOWER_ON_CPU
    change = context.change("device", device, why=_explain(context), costs=costs)
    if change is None:
        return None if on_accelerator else _hide_accelerator(context)
    back = restore_accumulation(context)
    effective = None if back else context.framework.effective_batch(context.settings)
    of = f" of {effective}" if effective is not None else ""
    to = device if on_accelerator else f"the CPU, with the full effective batch{of}"
    return remedy(f"Using the next device, {to}: {_explain(context)}.", change, *back)


def _hide_accelerator(context: RemedyContext) -> Remedy | None:
    """Hide the GPU from a script that uses a GPU if it finds one, and that has no flag for the device."""
    hidden_by = parse_device(context.device).kind.hidden_by
    if context.framework.overrides_settings or not hidden_by or not context.may_change_setting("device"):
        return None
    why = "this command has no known flag for its device, so the GPU is hidden from it"
    change = context.change(f"environment.{hidden_by}", "", why=why, costs=SLOWER_ON_CPU)
    return remedy(f"Using the CPU: {why}.", change)


def _explain(context: RemedyContext) -> str:
    if context.named_cause == "swap" or "memory" in by_id()[context.cause].charts:
        return "no cheaper change made the training fit into memory"
    return f"{context.cause} on {context.device}, and the device itself may be the reason"
