"""Rungs about the device: another one where this one does not tell the truth, or cannot hold the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.devices import kind_of
from holdfast.remedies.batch_size import accumulated_as_before, update_of
from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_HIDDEN = "CUDA_VISIBLE_DEVICES"


def next_device(now: RemedyContext) -> str | None:
    """In the plan's order, behind the one that is used; none that was used before."""
    order = [device for device in now.plan.policy.devices if device != "auto"] or ["cpu"]
    here = _name(now.settings.get("device")) or now.device
    moves = [change for change in now.changes if now.named(change.setting) == "device"]
    used = {_name(device) for change in moves for device in (change.before, change.after)}
    names = [_name(device) for device in order]
    place = next((n for n, name in enumerate(names) if name == here), -1)
    rest = list(zip(order, names, strict=True))[place + 1 :]
    return next((device for device, name in rest if name not in {here, *used}), None)


def _move(now: RemedyContext) -> Remedy | None:
    if not now.on_accelerator:
        return None
    device = next_device(now)
    if device is None:
        return None
    costs = "time: often many times slower" if kind_of(device) == "cpu" else ""
    change = now.change("device", device, why=_why(now), costs=costs)
    if change is None:
        return _hide_cuda(now, device)
    back = accumulated_as_before(now)
    full = (
        f", CPU mode with the full effective batch{_effective(now, back=bool(back))}"
        if kind_of(device) == "cpu"
        else f", {device}"
    )
    description = f"On to the next device{full}: {_why(now)}."
    return remedy("next-device", description, change, *back)


def _hide_cuda(now: RemedyContext, device: str) -> Remedy | None:
    """A script that takes a GPU where it finds one, and that no flag tells otherwise."""
    if now.ultralytics or now.device != "cuda" or kind_of(device) != "cpu" or not now.may("device"):
        return None
    why = "this command has no flag for its device that is known: the GPU is hidden from it"
    change = now.change(f"environment.{_HIDDEN}", "", why=why, costs="time: often many times slower")
    return remedy("next-device", f"CPU mode: {why}.", change)


def _why(now: RemedyContext) -> str:
    if "memory" in now.cause or now.cause == "epoch-time-blowup":
        return "nothing that costs less has made it fit"
    return f"{now.cause} on {now.device}: the device itself is suspected"


def _effective(now: RemedyContext, *, back: bool) -> str:
    update = update_of(now) if now.ultralytics and not back else None
    return f" of {update.effective}" if update is not None else ""


def _name(device: object) -> str:
    """`cuda`, `cuda:0`, `0` and `gpu` are the same device."""
    text = str(device).strip("[]() ").lower() if device is not None else ""
    number = text.rpartition(":")[2] if ":" in text else text if text.isdigit() else "0"
    kind = kind_of(text)
    return kind if number in ("", "0") else f"{kind}:{number}"


NEXT_DEVICE = RemedyStep(
    "next-device",
    'The next device of `policy.devices`, without an order the CPU ("CPU mode"), with the full effective batch. Commands need a known '
    "flag for it; from one without, CUDA is hidden.",
    "time: a CPU is often many times slower",
    _move,
)
