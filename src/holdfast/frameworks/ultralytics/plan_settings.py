"""Finds settings that Ultralytics would reject, ignore or misinterpret, before it is started."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics.setting_values import OF_OTHER_MODES, SETTINGS
from holdfast.schema.plan_keys import BY_NAME
from holdfast.storage.plan.mistakes import HOLDFAST_KEYS, Mistake, describe_place
from holdfast.storage.plan.values import (
    check_batch,
    check_device,
    check_fraction,
    check_quantize,
    check_scale,
    check_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from holdfast.storage.plan.toml_lines import KeyPath

HINTS = {
    "accumulate": "Ultralytics accumulates gradients automatically up to nbs images (64): set nbs",
    "accumulation": "Ultralytics accumulates gradients automatically up to nbs images (64): set nbs",
    "gradient_accumulation": "Ultralytics accumulates gradients automatically up to nbs images (64): set nbs",
    "accumulation_steps": "Ultralytics accumulates gradients automatically up to nbs images (64): set nbs",
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
    "half": "it is called quantize = 16 now and does not apply to training: use amp",
    "int8": "it is called quantize = 8 now",
    "label_smoothing": "Ultralytics has removed it: delete it",
    "crop_fraction": "Ultralytics has removed it: delete it",
    "save_hybrid": "Ultralytics has removed it: delete it",
    "hide_labels": "it is called show_labels now",
    "hide_conf": "it is called show_conf now",
    "line_thickness": "it is called line_width now",
}
REJECTED = {
    "val_period": "Ultralytics raises on it (ultralytics#17412, ultralytics#23715); validating every n epochs must be "
    "done by a callback that sets trainer.args.val",
    "val_interval": "Ultralytics raises on it; it validates after every epoch or, with val=False, after the last",
    "val_batch": "Ultralytics raises on it; validation uses twice the training's batch",
    **{name: HINTS[name] for name in ("accumulate", "gradient_accumulation", "accumulation_steps")},
}
"""Names that are often mistaken for Ultralytics arguments. Other libraries do not use them for something else."""
IGNORED_UNDER_AUTO = ("lr0", "momentum", "warmup_bias_lr")
_SPECIAL: dict[str, Callable[[Any], str | None]] = {
    "batch": check_batch,
    "device": check_device,
    "fraction": check_fraction,
    "quantize": check_quantize,
    "scale": check_scale,
}


def check_settings(settings: Mapping[str, Any], at: KeyPath, more: Callable[[], Collection[str]]) -> Iterator[Mistake]:
    """Check each name and value. `more` returns the names known to the user's version of Ultralytics.

    It is only called for a name that is unknown here.
    """
    for name, value in settings.items():
        message = _check_setting(name, value, more)
        if message:
            yield Mistake((*at, name), message)


def _check_setting(name: str, value: Any, more: Callable[[], Collection[str]]) -> str | None:
    if name not in SETTINGS:
        return None if name not in HOLDFAST_KEYS and name in more() else _describe_unknown_setting(name)
    if name == "resume":
        return "is not needed: Holdfast resumes a crashed training automatically; delete it"
    if name == "cfg":
        return "hides settings from this plan: copy the settings of that file to [settings]"
    if name in OF_OTHER_MODES:
        return "has no effect on training (it is for prediction or export): delete it"
    if name in _SPECIAL:
        return _SPECIAL[name](value)
    if name == "optimizer" and isinstance(value, str):  # Ultralytics ignores the case
        value = next((choice for choice in SETTINGS[name].choices if choice.lower() == value.lower()), value)
    if message := check_value(value, SETTINGS[name]):
        return message
    if name == "exist_ok" and value:
        return (
            "allows one stage to overwrite the weights of another: delete it, and each stage gets the next free folder"
        )
    if name == "save" and not value:
        return "saves no weights, neither to resume from nor to verify: delete it"
    return None


def _describe_unknown_setting(name: str) -> str:
    if name in HOLDFAST_KEYS:
        return f"is not an Ultralytics setting; use the Holdfast key instead: {HOLDFAST_KEYS[name]}"
    if name in HINTS:
        return f"is not an Ultralytics setting: {HINTS[name]}"
    tables = [table.name for table in BY_NAME.values() if any(key.name == name for key in table.keys or ())]
    if tables or name in BY_NAME:
        return f"is not an Ultralytics setting; move it {describe_place(tables[0] if tables else '')}"
    near = difflib.get_close_matches(name.lower(), [key for key in SETTINGS if key not in OF_OTHER_MODES], n=1)
    if near:
        return f"is not an Ultralytics setting: did you mean {near[0]}?"
    return "is not an Ultralytics setting; for a list, see https://docs.ultralytics.com/usage/cfg"


def check_stage(settings: Mapping[str, Any], where: Mapping[str, KeyPath], at: KeyPath) -> Iterator[Mistake]:
    """Check that the settings of one stage fit together. `where` is the path of each setting in the file."""
    for name in ("model", "data"):
        if not settings.get(name):
            yield Mistake(where.get(name, at), f"has no {name}: {_NEEDED[name]}" if name not in where else "is empty")
    optimizer = settings.get("optimizer", "auto")
    if isinstance(optimizer, str) and optimizer.lower() == "auto":
        for name in IGNORED_UNDER_AUTO:
            if name in where:
                yield Mistake(
                    where[name],
                    'is ignored by Ultralytics if optimizer is "auto", which is the default: '
                    'also set optimizer = "AdamW" or "SGD", or delete it',
                )
    if settings.get("time") is not None and "epochs" in where:
        yield Mistake(
            where["time"],
            "overrides epochs, which is also set: keep one of them; to limit a run without changing its schedule, use "
            "[budget] hours",
        )


_NEEDED = {
    "model": 'write, for example, model = "yolo11n.yaml" in [settings]',
    "data": 'write, for example, data = "data.yaml" in [settings]; holdfast init DATA.yaml writes a complete plan',
}
