"""Remedies that change the device: use a different one if this one computes wrong results or has too little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id
from holdfast.remedies.batch_size import restore_accumulation
from holdfast.remedies.step import Remedy, RemedyStep, remedy
from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext


def next_device(context: RemedyContext) -> str | None:
    """Return the next device in the plan's order that was not used before."""
    order = [device for device in context.plan.policy.devices if device != "auto"] or ["cpu"]
    named = parse_device(context.settings.get("device"))
    here = named if named.kind.name else parse_device(context.device)
    moves = [change for change in context.changes if context.get_name(change.setting) == "device"]
    used = {here, *(parse_device(device) for change in moves for device in (change.before, change.after))}
    place = next((n for n, device in enumerate(order) if parse_device(device) == here), -1)
    return next((device for device in order[place + 1 :] if parse_device(device) not in used), None)


def _use_next_device(context: RemedyContext) -> Remedy | None:
    if not context.on_accelerator:
        return None
    device = next_device(context)
    if device is None:
        return None
    on_accelerator = parse_device(device).kind.is_accelerator
    costs = "" if on_accelerator else "slower: the CPU often takes many times as long"
    change = context.change("device", device, why=_explain(context), costs=costs)
    if change is None:
        return None if on_accelerator else _hide_accelerator(context)
    back = restore_accumulation(context)
    full = (
        f", {device}"
        if on_accelerator
        else f", the CPU, with the full effective batch{_format_effective_batch(context, back=bool(back))}"
    )
    description = f"Using the next device{full}: {_explain(context)}."
    return remedy(description, change, *back)


def _hide_accelerator(context: RemedyContext) -> Remedy | None:
    """Hide the GPU from a script that uses a GPU if it finds one, and that has no flag for the device."""
    hidden_by = parse_device(context.device).kind.hidden_by
    if context.framework.overrides_settings or not hidden_by or not context.may_change_setting("device"):
        return None
    why = "this command has no known flag for its device, so the GPU is hidden from it"
    change = context.change(
        f"environment.{hidden_by}", "", why=why, costs="slower: the CPU often takes many times as long"
    )
    return remedy(f"Using the CPU: {why}.", change)


def _explain(context: RemedyContext) -> str:
    if context.named_cause == "swap" or "memory" in by_id()[context.cause].charts:
        return "no cheaper change made the training fit into memory"
    return f"{context.cause} on {context.device}, and the device itself may be the reason"


def _format_effective_batch(context: RemedyContext, *, back: bool) -> str:
    effective = None if back else context.framework.effective_batch(context.settings)
    return f" of {effective}" if effective is not None else ""


NEXT_DEVICE = RemedyStep(
    "next-device",
    "Use the next device in `[policy] devices`; if that is not set, the CPU. The full effective batch size is kept, or restored "
    "after `accumulate-less`. A command whose framework Holdfast does not know needs a known flag for its device; if it has none, Holdfast "
    "can only hide CUDA from it, so that it uses the CPU.",
    "slower: the CPU often takes many times as long",
    _use_next_device,
)
