"""Remedies that change the device: use a different one if this one computes wrong results or has too little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.devices import kind_of
from holdfast.remedies.batch_size import get_update, restore_accumulation
from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_HIDDEN = "CUDA_VISIBLE_DEVICES"


def next_device(context: RemedyContext) -> str | None:
    """Return the next device in the plan's order that was not used before."""
    order = [device for device in context.plan.policy.devices if device != "auto"] or ["cpu"]
    here = _normalize(context.settings.get("device")) or context.device
    moves = [change for change in context.changes if context.get_name(change.setting) == "device"]
    used = {_normalize(device) for change in moves for device in (change.before, change.after)}
    names = [_normalize(device) for device in order]
    place = next((n for n, name in enumerate(names) if name == here), -1)
    rest = list(zip(order, names, strict=True))[place + 1 :]
    return next((device for device, name in rest if name not in {here, *used}), None)


def _use_next_device(context: RemedyContext) -> Remedy | None:
    if not context.on_accelerator:
        return None
    device = next_device(context)
    if device is None:
        return None
    costs = "slower: the CPU often takes many times as long" if kind_of(device) == "cpu" else ""
    change = context.change("device", device, why=_explain(context), costs=costs)
    if change is None:
        return _hide_cuda(context, device)
    back = restore_accumulation(context)
    full = (
        f", the CPU, with the full effective batch{_format_effective_batch(context, back=bool(back))}"
        if kind_of(device) == "cpu"
        else f", {device}"
    )
    description = f"Using the next device{full}: {_explain(context)}."
    return remedy("next-device", description, change, *back)


def _hide_cuda(context: RemedyContext, device: str) -> Remedy | None:
    """Hide the GPU from a script that uses a GPU if it finds one, and that has no flag for the device."""
    if (
        context.ultralytics
        or context.device != "cuda"
        or kind_of(device) != "cpu"
        or not context.may_change_setting("device")
    ):
        return None
    why = "this command has no known flag for its device, so the GPU is hidden from it"
    change = context.change(
        f"environment.{_HIDDEN}", "", why=why, costs="slower: the CPU often takes many times as long"
    )
    return remedy("next-device", f"Using the CPU: {why}.", change)


def _explain(context: RemedyContext) -> str:
    if "memory" in context.cause or context.cause == "epoch-time-blowup":
        return "no cheaper change made the training fit into memory"
    return f"{context.cause} on {context.device}, and the device itself may be the reason"


def _format_effective_batch(context: RemedyContext, *, back: bool) -> str:
    update = get_update(context) if context.ultralytics and not back else None
    return f" of {update.effective}" if update is not None else ""


def _normalize(device: object) -> str:
    """Return the canonical name of a device: `cuda`, `cuda:0`, `0` and `gpu` are the same."""
    text = str(device).strip("[]() ").lower() if device is not None else ""
    number = text.rpartition(":")[2] if ":" in text else text if text.isdigit() else "0"
    kind = kind_of(text)
    return kind if number in ("", "0") else f"{kind}:{number}"


NEXT_DEVICE = RemedyStep(
    "next-device",
    "Use the next device in `[policy] devices`; if that is not set, the CPU. The full effective batch size is kept, or restored "
    "after `accumulate-less`. A command that does not use Ultralytics needs a known flag for its device; if it has none, Holdfast "
    "can only hide CUDA from it, so that it uses the CPU.",
    "slower: the CPU often takes many times as long",
    _use_next_device,
)
