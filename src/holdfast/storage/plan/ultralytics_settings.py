"""What Ultralytics would reject, ignore or understand otherwise, found before it is started."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.schema.plan_keys import BY_NAME
from holdfast.schema.ultralytics_settings import OF_OTHER_MODES, SETTINGS
from holdfast.storage.plan.values import (
    batch_complaint,
    complaint,
    device_complaint,
    fraction_complaint,
    quantize_complaint,
    scale_complaint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from holdfast.storage.plan.toml_lines import KeyPath

OUTSIDE = {
    "val_period": "[validation] every",
    "val_interval": "[validation] every",
    "val_every": "[validation] every",
    "val_batch": "[validation] batch",
    "val_max_det": "[validation] max_det",
    "best_by": "[validation] best_by",
    "max_attempts": "[budget] attempts",
    "max_memory": "[budget] memory",
    "max_hours": "[budget] hours",
    "devices": "[policy] devices",
    "clear_cache": "a table of its own, [clear_cache]",
}
"""Names that people take for settings of Ultralytics, and where Holdfast has them."""
OTHERWISE = {
    "accumulate": "Ultralytics accumulates gradients by itself up to nbs images (64): set nbs",
    "accumulation": "Ultralytics accumulates gradients by itself up to nbs images (64): set nbs",
    "gradient_accumulation": "Ultralytics accumulates gradients by itself up to nbs images (64): set nbs",
    "accumulation_steps": "Ultralytics accumulates gradients by itself up to nbs images (64): set nbs",
    "lr": "did you mean lr0, the learning rate at the start?",
    "learning_rate": "did you mean lr0, the learning rate at the start?",
    "image_size": "did you mean imgsz?",
    "img_size": "did you mean imgsz?",
    "img": "did you mean imgsz?",
    "batch_size": "did you mean batch?",
    "weights": "did you mean model? It takes a .yaml or a .pt",
    "num_workers": "did you mean workers?",
    "early_stopping": "did you mean patience?",
    "rotation": "did you mean degrees?",
    "half": "it is called quantize = 16 now, and is no matter of a training: amp is",
    "int8": "it is called quantize = 8 now",
    "label_smoothing": "Ultralytics has removed it: leave it out",
    "crop_fraction": "Ultralytics has removed it: leave it out",
    "save_hybrid": "Ultralytics has removed it: leave it out",
    "hide_labels": "it is called show_labels now",
    "hide_conf": "it is called show_conf now",
    "line_thickness": "it is called line_width now",
}
IGNORED_UNDER_AUTO = ("lr0", "momentum", "warmup_bias_lr")
_SPECIAL: dict[str, Callable[[Any], str | None]] = {
    "batch": batch_complaint,
    "device": device_complaint,
    "fraction": fraction_complaint,
    "quantize": quantize_complaint,
    "scale": scale_complaint,
}


class Mistake(NamedTuple):
    path: KeyPath
    message: str
    """To be read after the key that the path names."""


def each_setting(settings: Mapping[str, Any], at: KeyPath, more: Callable[[], Collection[str]]) -> Iterator[Mistake]:
    """Names and values, one by one. `more`: names that the user's own version knows, asked only where one is unknown here."""
    for name, value in settings.items():
        message = _complaint(name, value, more)
        if message:
            yield Mistake((*at, name), message)


def _complaint(name: str, value: Any, more: Callable[[], Collection[str]]) -> str | None:
    if name not in SETTINGS:
        return None if name not in OUTSIDE and name in more() else unknown_setting(name)
    if name == "resume":
        return "is not needed: Holdfast goes on by itself from where a training died; leave it out"
    if name == "cfg":
        return "hides settings from this plan: write what that file sets into [settings]"
    if name in OF_OTHER_MODES:
        return "does nothing in a training (it is for prediction or export): leave it out"
    if name in _SPECIAL:
        return _SPECIAL[name](value)
    if name == "optimizer" and isinstance(value, str):  # which Ultralytics takes in any case
        value = next((choice for choice in SETTINGS[name].choices if choice.lower() == value.lower()), value)
    if message := complaint(value, SETTINGS[name]):
        return message
    if name == "exist_ok" and value:
        return "lets one stage write over the weights of another: leave it out, and each gets the next free folder"
    if name == "save" and not value:
        return "leaves no weights to go on with, and none to prove anything by: leave it out"
    return None


def unknown_setting(name: str) -> str:
    if name in OUTSIDE:
        return f"is no setting of Ultralytics; Holdfast has it: {OUTSIDE[name]}"
    if name in OTHERWISE:
        return f"is no setting of Ultralytics: {OTHERWISE[name]}"
    places = [table for table, known in BY_NAME.items() if any(key.name == name for key in known.keys or ())]
    if places or name in BY_NAME:
        return f"is no setting of Ultralytics; it belongs {place_of(places[0] if places else '')}"
    near = difflib.get_close_matches(name.lower(), [key for key in SETTINGS if key not in OF_OTHER_MODES], n=1)
    if near:
        return f"is no setting of Ultralytics: did you mean {near[0]}?"
    return "is no setting of Ultralytics; they are listed at https://docs.ultralytics.com/usage/cfg"


def place_of(table: str) -> str:
    if not table:
        return "to the top of the file, before the first [table]"
    return {"stages": "into a [[stages]]", "stages.gate": "into a stage's gate"}.get(table, f"into [{table}]")


def together(settings: Mapping[str, Any], where: Mapping[str, KeyPath], at: KeyPath) -> Iterator[Mistake]:
    """What cannot stand together in one stage. `where`: the path at which each of the settings was written."""
    for name in ("model", "data"):
        if not settings.get(name):
            yield Mistake(where.get(name, at), f"has no {name}: {_NEEDED[name]}" if name not in where else "is empty")
    optimizer = settings.get("optimizer", "auto")
    if isinstance(optimizer, str) and optimizer.lower() == "auto":
        for name in IGNORED_UNDER_AUTO:
            if name in where:
                yield Mistake(
                    where[name],
                    'is ignored by Ultralytics while optimizer is "auto", which is its default: '
                    'also write optimizer = "AdamW" or "SGD", or leave it out',
                )
    if settings.get("time") is not None and "epochs" in where:
        yield Mistake(
            where["time"],
            "replaces epochs, which are written too: keep one of them; [budget] hours ends a run without changing its "
            "schedule",
        )


_NEEDED = {
    "model": 'write e.g. model = "yolo11n.yaml" into [settings]',
    "data": 'write e.g. data = "data.yaml" into [settings]; holdfast init DATA.yaml makes a whole plan',
}
