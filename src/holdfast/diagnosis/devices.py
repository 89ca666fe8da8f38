"""The kind of device that a training runs on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.run_state import AttemptState


def device_kind(attempt: AttemptState, settings: Mapping[str, Any]) -> str:
    """Return `cpu`, `mps` or `cuda`; empty if unknown."""
    seen = attempt.memory.device
    if seen is not None and seen.device != "cpu":
        return kind_of(seen.device)
    return kind_of(settings.get("device")) or ("cpu" if seen is not None else "")


def kind_of(device: Any) -> str:
    """Return the kind of a device as it is written in a setting: `0`, `0,1`, `cuda:1` and `gpu` are all `cuda`."""
    name = str(device).strip("[]() ").lower().partition(":")[0] if device is not None else ""
    if name == "gpu" or re.fullmatch(r"-?\d+(, ?-?\d+)*", name):
        return "cuda"
    return "" if name in ("", "none", "auto") else name
